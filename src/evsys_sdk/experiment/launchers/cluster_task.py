"""What runs on a node of a cluster, Slurm's or Ray's, that shares the disk with the launcher: one arm."""

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
"""The file with what all arms of an experiment share, in the folder of the launcher."""


def execute_on_node(folder: Path, job: ArmJob, asked: Path, control: RunControl) -> RunResult:
    """Execute an arm; it stops when the file `asked` holds a reason, and when the launcher's folder is gone."""
    os.environ["EVSYS_ARM_WORKER"] = "1"
    code, launch = pickle.loads((folder / SHARED).read_bytes())
    ended = threading.Event()

    def listen() -> None:
        while not ended.wait(_POLL_S):
            if asked.exists():
                control.stop(asked.read_text("utf-8"), interrupted=True)
                return
            if not folder.exists():
                control.stop("the experiment has ended", interrupted=True)
                return

    threading.Thread(target=listen, daemon=True).start()
    try:
        code.load()
        return portable(execute(job, launch, control))
    except EvsysError as error:  # as wrong on every other node
        return refuse(job, error)
    finally:
        ended.set()


def run_ray_task(folder: str, job: bytes, asked: str, cwd: str) -> bytes | None:
    """The pickled result of an arm on a worker of Ray; None where the worker does not see the disk."""
    if not Path(folder, SHARED).exists():
        return None
    os.chdir(cwd)  # where the caller works: paths of data and of the record are relative to it
    return pickle.dumps(execute_on_node(Path(folder), pickle.loads(job), Path(asked), RunControl()))
