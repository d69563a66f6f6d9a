"""What runs on a node of a Slurm cluster: one arm of an array."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from ...errors import EvsysError
from ...training.callback import RunControl
from ..arms.results import portable
from ..launcher import ArmJob, execute, refuse
from .slurm import task_file, write_pickle

_POLL_S = 0.5
_PREEMPTED = "Slurm ends the task"


def main(shared: Path, folder: Path) -> int:
    """Execute the arm of this task; without a result it is lost, and continues where it is started again."""
    os.environ["EVSYS_ARM_WORKER"] = "1"
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    code, launch = pickle.loads((shared / "shared").read_bytes())
    job: ArmJob = pickle.loads(task_file(folder, index, "job").read_bytes())
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")):  # requeued: what it had saved is there
        job = replace(job, resume=True)
    control, ended = RunControl(), threading.Event()

    def preempt(signum: int, frame: object) -> None:
        control.stop(_PREEMPTED, interrupted=True)

    signal.signal(signal.SIGTERM, preempt)

    def listen() -> None:
        asked = task_file(folder, index, "stop")
        while not ended.wait(_POLL_S):
            if asked.exists():
                control.stop(asked.read_text("utf-8"), interrupted=True)
                return
            if not shared.exists():
                control.stop("the experiment has ended", interrupted=True)
                return

    threading.Thread(target=listen, daemon=True).start()
    try:
        code.load()
        result = execute(job, launch, control)
    except EvsysError as error:  # as wrong on every other node
        result = refuse(job, error)
    finally:
        ended.set()
    if result.status == "cancelled" and control.stop_reason == _PREEMPTED:
        return 1
    write_pickle(task_file(folder, index, "result"), portable(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
