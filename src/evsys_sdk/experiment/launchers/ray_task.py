"""What runs on a Ray worker: one arm, and the exchange of messages and files with the process that asked for it."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import io
import os
import pickle
import tarfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import EvsysError
from ...record.layout import RunFiles
from ...training.callback import Callback, RunControl
from ..arms.results import portable
from ..launcher import ArmJob, execute, refuse

_POLL_S = 0.5
_MOST_MISSED = 20
"""How often in a row no one may answer before the experiment counts as gone."""


class MessageBoard:
    """An actor that both sides reach: requests to stop, and what a worker on another disk has written so far."""

    def __init__(self) -> None:
        self._stops: dict[str, str] = {}
        self._files: dict[str, bytes] = {}

    def stop(self, arm: str, reason: str) -> None:
        self._stops[arm] = reason

    def reason(self, arm: str) -> str | None:
        return self._stops.get(arm)

    def clear(self, arm: str) -> None:
        """Forget what was asked of an earlier attempt."""
        self._stops.pop(arm, None)
        self._files.pop(arm, None)

    def keep(self, arm: str, files: bytes) -> None:
        self._files[arm] = files

    def files(self, arm: str) -> bytes:
        return self._files.get(arm, b"")


def run_task(shared: bytes, job_bytes: bytes, token: str, folder: str, board: Any) -> bytes:
    """Execute an arm; returns its result and, where the caller does not see this disk, everything it has written."""
    os.environ["EVSYS_ARM_WORKER"] = "1"
    code, launch = pickle.loads(shared)
    same_disk = Path(token).exists()
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # where the caller works: paths of data and of the record are relative to it
    job: ArmJob = pickle.loads(job_bytes)
    try:
        code.load()
    except EvsysError as error:  # as wrong on every other machine, so that trying again is of no use
        return pickle.dumps((refuse(job, error), b"" if same_disk else pack(job.run_dir)))
    if not same_disk:
        # Under the same name, so that the paths it records are right where the files come back to.
        launch = replace(launch, callbacks=[*launch.callbacks, partial(SendBack, job.arm.name, job.run_dir, board)])
    control = RunControl()
    with _listen(control, job.arm.name, board):
        result = execute(job, launch, control)
    return pickle.dumps((portable(result), b"" if same_disk else pack(job.run_dir)))


class SendBack(Callback):
    """Sends what has been written, after each checkpoint: were this machine lost, the arm continues from there."""

    name = "send_back"

    def __init__(self, arm: str, run_dir: Path, board: Any) -> None:
        self._arm, self._run_dir, self._board = arm, run_dir, board

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        import ray

        ray.get(self._board.keep.remote(self._arm, pack(self._run_dir)))


def pack(folder: Path) -> bytes:
    """All files below a folder."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            # Who holds a lock is no part of what was written, and is another process where this is unpacked.
            if path.is_file() and path.name != RunFiles.lock.name:
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return content.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Write what `pack` has read below another folder."""
    if files:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(folder, filter="data")  # no path or link that leads out of the folder, and no devices


@contextmanager
def _listen(control: RunControl, arm: str, board: Any) -> Generator[None]:
    """Hear of requests to stop while the block runs."""
    import ray

    ended = threading.Event()

    def listen() -> None:
        missed = 0
        while not ended.wait(_POLL_S):
            try:
                reason, missed = ray.get(board.reason.remote(arm)), 0
            except Exception:  # the board is on its way to another machine, or gone with whoever could want the result
                missed += 1
                reason = "the experiment has ended" if missed > _MOST_MISSED else None
            if reason is not None:
                control.stop(reason, interrupted=True)
                return

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
