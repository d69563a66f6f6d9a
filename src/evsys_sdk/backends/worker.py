"""One thread that works through operations in the order they were submitted.

The caller immediately gets an `Operation` and continues, for instance with the next batch. A failed operation raises
from its result; the thread continues with the next. Adjacent requests of one group (`submit_many`) run in one call. A
long request may return `UNFINISHED` after a while and continues after the other waiting requests.
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
"""Returned instead of a result: call again with the same request."""


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
    """Runs operations in order on one thread, which starts with the first operation."""

    def __init__(self, name: str, *, latency_s: float = 0.0) -> None:
        self._name = name
        self._queue = _Queue(latency_s=latency_s)
        self._thread: threading.Thread | None = None
        weakref.finalize(self, _close, self._queue)  # stops the thread of a client that is never closed

    def submit[T](self, what: str, work: Callable[[], T]) -> Operation[T]:
        """Run `work` after everything submitted before."""
        return self._add(what, None, lambda requests: [work() for _ in requests], group=None)

    def submit_many[Q, T](
        self, what: str, request: Q, run: Callable[[Sequence[Q]], Sequence[T]], *, group: object
    ) -> Operation[T]:
        """Handle `request` with `run`, together with adjacent requests of the same group."""
        return self._add(what, request, run, group=group)

    def close(self) -> None:
        """Finish submitted operations, then stop the thread. Closing twice has no effect."""
        _close(self._queue)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, what: str, request: Any, run: _Together, *, group: object | None) -> Operation[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a cancelled task must not silently drop an optimiser step
        with self._queue.changed:
            if self._queue.closed:
                raise BackendError(f"{what} was asked of a client that is closed. Prepare the backend again.")
            self._queue.tasks.append(_Task(future, request, run, group))
            if self._thread is None:
                # The thread references only the queue, so that the worker can be garbage-collected.
                queue = self._queue
                self._thread = start_thread(lambda: _serve(queue), name=self._name, give_up=lambda: _give_up(queue))
            self._queue.changed.notify()
        return Operation(future, what)


_running: weakref.WeakKeyDictionary[threading.Thread, tuple[Callable[[], None], threading.Event]]
_running = weakref.WeakKeyDictionary()
_LAST_WORK_S = 30.0


def start_thread(work: Callable[[], None], *, name: str, give_up: Callable[[], None]) -> threading.Thread:
    """A thread that is stopped and joined before the interpreter exits.

    A thread that still computes in a library during interpreter shutdown crashes the process.
    """
    ended = threading.Event()  # `is_alive` is unreliable after an interrupted `join`

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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would abort the wait
    # Stop all threads before joining the first, so that they end together.
    for give_up, _ in running:
        give_up()
    for _, ended in running:
        ended.wait(_LAST_WORK_S)


def _give_up(queue: _Queue) -> None:
    """Drop operations that have not started."""
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
        del tasks  # an idle thread must not hold the last batch in memory


def _continue_later(queue: _Queue, tasks: list[_Task]) -> None:
    with queue.changed:
        if queue.given_up:
            return
        for task in tasks:
            task.begun = True
        queue.tasks.extend(tasks)


def _next_tasks(queue: _Queue) -> list[_Task]:
    """The next task and its neighbours of the same group; empty when the queue is closed."""
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
