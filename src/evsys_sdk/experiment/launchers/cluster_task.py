"""Execute one arm on a node of a Slurm or Ray cluster that shares the disk with the launcher."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

from ...errors import EvsysError
from ...protocols import RunResult
from ...training.callback import RunControl
from ..arms.results import portable
from ..launcher import ArmJob, execute, refuse

_POLL_S = 0.5
SHARED = "shared"
"""The file in the launcher's folder with the settings of all arms."""


def execute_on_node(folder: Path, job: ArmJob, stop_file: Path, control: RunControl) -> RunResult:
    """Execute an arm; it stops when `stop_file` (the reason) exists or the folder is gone."""
    os.environ["EVSYS_ARM_WORKER"] = "1"
    code, launch = pickle.loads((folder / SHARED).read_bytes())
    ended = threading.Event()

    def listen() -> None:
        while not ended.wait(_POLL_S):
            if stop_file.exists():
                control.stop(stop_file.read_text("utf-8"), interrupted=True)
                return
            if not folder.exists():
                control.stop("the experiment has ended", interrupted=True)
                return

    threading.Thread(target=listen, daemon=True).start()
    try:
        code.load()
        return portable(execute(job, launch, control))
    except EvsysError as error:  # would fail on every node
        return refuse(job, error)
    finally:
        ended.set()


def run_ray_task(folder: str, job: bytes, stop_file: str, cwd: str) -> bytes | None:
    """The pickled result of an arm on a Ray worker; None if the worker does not see the disk."""
    if not Path(folder, SHARED).exists():
        return None
    os.chdir(cwd)  # paths of data and of the record are relative to the caller's working folder
    return pickle.dumps(execute_on_node(Path(folder), pickle.loads(job), Path(stop_file), RunControl()))
