"""Several arms in one process on one GPU: they share the base model, and the engine joins their passes.

Each arm has a thread, and its own control, time limit, record and result. If the process is lost, or an arm fails with
a temporary error, the arms continue from their last checkpoints in another process, one after another, once nothing
runs in the shared one.
"""

from __future__ import annotations

import threading

from ...log import get_logger
from ...protocols import RunResult
from ..launcher import ArmJob, Launch, WorkerLost
from .worker_process import ArmWorker


class SharedWorker(ArmWorker):
    """Runs arms together in one process, or one by one after a failure."""

    def __init__(self, launch: Launch, shared: bytes, alone: ArmWorker, environment: dict[str, str]) -> None:
        super().__init__(launch, shared, environment)
        self._alone = alone
        self._changed = threading.Condition()
        self._running = 0
        self._is_shared = True
        self._turn = threading.Lock()

    def run(self, job: ArmJob) -> RunResult:
        with self._changed:
            together = self._is_shared
            self._running += together
        if together:
            return self._run_shared(job)
        with self._turn:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
            super().close()  # frees its memory
            return self._alone.run(job)

    def _run_shared(self, job: ArmJob) -> RunResult:
        try:
            result = super().run(job)
            if result.status != "failed" or not result.notes.retryable:
                return result
            error = WorkerLost(f"it failed next to other arms on one GPU: {result.error}", retries=1)
        except WorkerLost as lost:
            error = lost if lost.final else WorkerLost(str(lost), retries=1)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        if self._is_shared:
            self._is_shared = False
            get_logger(__name__).warning(
                "arms on this GPU no longer share a process and continue one by one from checkpoints: %s", error
            )
        raise error

    def stop(self, arm: str, reason: str) -> None:
        super().stop(arm, reason)
        self._alone.stop(arm, reason)

    def kill(self) -> None:
        super().kill()
        self._alone.kill()

    def close(self) -> None:
        super().close()
        self._alone.close()
