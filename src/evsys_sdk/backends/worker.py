"""One thread that works through operations in the order they were submitted.

The caller gets an `Operation` at once and goes on, for instance with building the next batch. An operation that fails
says so in its own result; the thread carries on with the next. Requests that may be answered together (`submit_many`)
are, when they stand next to each other in the queue.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..errors import BackendError
from .future import Operation

type _Together = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(slots=True)
class _Task:
    future: Future[Any]
    request: Any
    run: _Together
    group: object | None
    """Neighbours with the same group are run in one call."""


@dataclass(slots=True)
class _Queue:
    tasks: deque[_Task] = field(default_factory=deque[_Task])
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False
    latency_s: float = 0.0


class Worker:
    """Runs operations one after another on a thread of its own, which starts with the first operation."""

    def __init__(self, name: str, *, latency_s: float = 0.0) -> None:
        self._name = name
        self._queue = _Queue(latency_s=latency_s)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, _close, self._queue)  # a client that is dropped unclosed leaves no thread behind

    def submit[T](self, what: str, work: Callable[[], T]) -> Operation[T]:
        """Run `work` after everything submitted before it."""
        return self._add(what, None, lambda requests: [work() for _ in requests], group=None)

    def submit_many[Q, T](
        self, what: str, request: Q, run: Callable[[Sequence[Q]], Sequence[T]], *, group: object
    ) -> Operation[T]:
        """Answer `request` with `run`, together with its neighbours of the same group."""
        return self._add(what, request, run, group=group)

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Closing twice does nothing."""
        _close(self._queue)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, what: str, request: Any, run: _Together, *, group: object | None) -> Operation[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a cancelled task must not drop an optimiser step unnoticed
        with self._queue.changed:
            if self._queue.closed:
                raise BackendError(f"{what} was asked of a client that is closed. Prepare the backend again.")
            self._queue.tasks.append(_Task(future, request, run, group))
            if self._thread is None:
                self._thread = threading.Thread(target=_serve, args=(self._queue,), name=self._name, daemon=True)
                end_with_process(self._thread, lambda queue=self._queue: _give_up(queue))
                self._thread.start()
            self._queue.changed.notify()
        return Operation(future, what)


_threads: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()
_LAST_WORK_S = 30.0


def end_with_process(thread: threading.Thread, give_up: Callable[[], None]) -> None:
    """Have a thread end before the interpreter does: one that computes on while Python is torn down takes it down."""
    _threads[thread] = give_up


@atexit.register
def _end_threads() -> None:
    running = [(thread, give_up) for thread, give_up in _threads.items() if thread.is_alive()]
    for _, give_up in running:
        give_up()
    for thread, _ in running:
        thread.join(_LAST_WORK_S)


def _give_up(queue: _Queue) -> None:
    """Nobody waits any more for what has not begun."""
    with queue.changed:
        queue.tasks.clear()
    _close(queue)


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.closed = True
        queue.changed.notify_all()


def _serve(queue: _Queue) -> None:
    while tasks := _next_tasks(queue):
        try:
            if queue.latency_s:
                time.sleep(queue.latency_s)
            results = tasks[0].run([task.request for task in tasks])
        except BaseException as error:
            for task in tasks:
                task.future.set_exception(error)
        else:
            for task, result in zip(tasks, results, strict=True):
                task.future.set_result(result)
        del tasks  # an idle thread must not keep the last batch alive


def _next_tasks(queue: _Queue) -> list[_Task]:
    """The next task and the neighbours that can be run with it; empty when the queue is closed and done."""
    with queue.changed:
        while not queue.tasks:
            if queue.closed:
                return []
            queue.changed.wait()
        tasks = [queue.tasks.popleft()]
        group = tasks[0].group
        while group is not None and queue.tasks and queue.tasks[0].group is group:
            tasks.append(queue.tasks.popleft())
        return tasks
