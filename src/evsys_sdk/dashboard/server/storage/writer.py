"""A single writer thread; jobs that arrive while it is busy are committed together, so many clients need few commits.

future = writer.submit(lambda connection: ingest.apply(connection, batch))
answer = await asyncio.wrap_future(future)          # committed, or raises
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection, Engine

from ....errors import EvsysError
from ....log import get_logger

_MOST_AT_ONCE = 64
_LONGEST_QUEUE = 512

type Job[T] = Callable[[Connection], T]


class Busy(EvsysError):
    """The queue of the writer is full."""


class Writer:
    """Runs jobs in order, each in a savepoint of a shared transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(writes=True)
        self._jobs: queue.Queue[tuple[Job[Any], Future[Any]] | None] = queue.Queue(_LONGEST_QUEUE)
        self.after_commit: list[Callable[[], None]] = []
        """Callbacks after each commit, on the writer thread."""
        self.after_rollback: list[Callable[[], None]] = []
        """Callbacks after a rollback, to invalidate caches that jobs have filled."""
        self._thread = threading.Thread(target=self._run, name="evsys-dashboard-writer", daemon=True)
        self._thread.start()

    def submit[T](self, job: Job[T]) -> Future[T]:
        """Queue a job; the future completes after the commit."""
        future: Future[T] = Future()
        try:
            self._jobs.put_nowait((job, future))
        except queue.Full:
            raise Busy("the server is busy. Try again in a moment.") from None
        return future

    def call[T](self, job: Job[T]) -> T:
        """Run a job and wait for it."""
        return self.submit(job).result()

    def close(self) -> None:
        """Finish the queued jobs and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            # Takes the queued jobs without waiting for more, so that a single job is committed immediately.
            batch = [first]
            last = False
            while len(batch) < _MOST_AT_ONCE and not last:
                try:
                    following = self._jobs.get_nowait()
                except queue.Empty:
                    break
                last = following is None
                if following is not None:
                    batch.append(following)
            self._commit(batch)
            if last:
                return

    def _commit(self, batch: list[tuple[Job[Any], Future[Any]]]) -> None:
        done: list[tuple[Future[Any], Any]] = []
        try:
            with self._engine.connect() as connection, connection.begin():
                for job, future in batch:
                    if not future.set_running_or_notify_cancel():  # cancelled
                        continue
                    try:
                        with connection.begin_nested():
                            result = job(connection)
                    except Exception as error:
                        future.set_exception(error)
                        self._notify(self.after_rollback)
                    else:
                        done.append((future, result))
        except Exception as error:  # e.g. a full disk: the whole batch is rolled back
            self._notify(self.after_rollback)
            get_logger(__name__).warning("nothing could be written: %s: %s", type(error).__name__, error)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in done:  # after the commit
            future.set_result(result)
        self._notify(self.after_commit)

    @staticmethod
    def _notify(listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            try:
                listener()
            except Exception:
                get_logger(__name__).exception("a listener of the writer failed")
