"""One thread that works through operations in the order they were submitted.

The caller gets an `Operation` at once and continues, for instance with building the next batch. An operation that fails
says so in its own result; the thread carries on with the next. Requests that may be answered together (`submit_many`)
are, when they stand next to each other in the queue. One that takes long may be worked on for a while, answer
`UNFINISHED` and is then continued when all that were waiting have had their turn.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import BackendError
from .future import Operation

type _Together = Callable[[Sequence[Any]], Sequence[Any]]

UNFINISHED: Final = object()
"""In place of a result: call again with the same request."""


@dataclass(slots=True)
class _Task:
    future: Future[Any]
    request: Any
    run: _Together
    group: object | None
    """Neighbours with the same group are run in one call."""
    begun: bool = False


@dataclass(slots=True)
class _Queue:
    tasks: deque[_Task] = field(default_factory=deque[_Task])
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False
    given_up: bool = False
    latency_s: float = 0.0


class CallWorker:
    """Runs operations one after another on its own thread, which starts with the first operation."""

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
                # The thread knows the queue and not the worker, which could otherwise never be dropped and end it.
                queue = self._queue
                self._thread = start_thread(lambda: _serve(queue), name=self._name, give_up=lambda: _give_up(queue))
            self._queue.changed.notify()
        return Operation(future, what)


_running: weakref.WeakKeyDictionary[threading.Thread, tuple[Callable[[], None], threading.Event]]
_running = weakref.WeakKeyDictionary()
_LAST_WORK_S = 30.0


def start_thread(work: Callable[[], None], *, name: str, give_up: Callable[[], None]) -> threading.Thread:
    """A thread that is asked to stop, and waited for, before the interpreter ends.

    One that computes on in a library while Python is torn down takes the process with it.
    """
    ended = threading.Event()  # a thread whose `join` was interrupted no longer tells whether it is alive

    def run() -> None:
        try:
            work()
        finally:
            ended.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = (give_up, ended)
    thread.start()
    return thread


@atexit.register
def _end_threads() -> None:
    running = [(give_up, ended) for give_up, ended in _running.values() if not ended.is_set()]
    if running and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would end the waiting and then the process
    # All are asked to stop before the first is waited for, so that they end together.
    for give_up, _ in running:
        give_up()
    for _, ended in running:
        ended.wait(_LAST_WORK_S)


def _give_up(queue: _Queue) -> None:
    """No one waits any more for what has not begun."""
    with queue.changed:
        queue.tasks.clear()
        queue.given_up = True
    _close(queue)


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.closed = True
        queue.changed.notify_all()


def _serve(queue: _Queue) -> None:
    while tasks := _next_tasks(queue):
        try:
            if queue.latency_s and not tasks[0].begun:
                time.sleep(queue.latency_s)
            results = tasks[0].run([task.request for task in tasks])
        except BaseException as error:
            for task in tasks:
                task.future.set_exception(error)
        else:
            unfinished = [task for task, result in zip(tasks, results, strict=True) if result is UNFINISHED]
            _continue_later(queue, unfinished)
            for task, result in zip(tasks, results, strict=True):
                if result is not UNFINISHED:
                    task.future.set_result(result)
            del unfinished
        del tasks  # an idle thread must not keep the last batch alive


def _continue_later(queue: _Queue, tasks: list[_Task]) -> None:
    with queue.changed:
        if queue.given_up:
            return
        for task in tasks:
            task.begun = True
        queue.tasks.extend(tasks)


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
