"""One thread that writes. What arrives while it is busy is committed together, so many clients cost few commits.

future = writer.submit(lambda connection: ingest.apply(connection, batch))
answer = await asyncio.wrap_future(future)          # it is on disk now, or it raises
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
    """There is more to write than can be written."""


class Writer:
    """Runs jobs one after the other, each in a savepoint of a shared transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(writes=True)
        self._jobs: queue.Queue[tuple[Job[Any], Future[Any]] | None] = queue.Queue(_LONGEST_QUEUE)
        self.after_commit: list[Callable[[], None]] = []
        """Called on this thread after each commit."""
        self.after_rollback: list[Callable[[], None]] = []
        """Called when something that a job did was undone: what it remembered may be untrue."""
        self._thread = threading.Thread(target=self._run, name="evsys-dashboard-writer", daemon=True)
        self._thread.start()

    def submit[T](self, job: Job[T]) -> Future[T]:
        """Run a job soon; the future is done once its result is committed."""
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
        """Finish what is queued and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            # What is there now goes with it, and no one waits for more: alone, a job is committed at once.
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
                    if not future.set_running_or_notify_cancel():  # no one waits for it any more
                        continue
                    try:
                        with connection.begin_nested():
                            result = job(connection)
                    except Exception as error:
                        future.set_exception(error)
                        self._tell(self.after_rollback)
                    else:
                        done.append((future, result))
        except Exception as error:  # a full disk, a lost connection: nothing of this batch is kept
            self._tell(self.after_rollback)
            get_logger(__name__).warning("nothing could be written: %s: %s", type(error).__name__, error)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in done:  # only now: a record that is reported as stored is stored
            future.set_result(result)
        self._tell(self.after_commit)

    @staticmethod
    def _tell(listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            try:
                listener()
            except Exception:
                get_logger(__name__).exception("a listener of the writer failed")
