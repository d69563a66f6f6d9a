"""The program that executes one arm of an array on a node of a Slurm cluster."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path

from ...training.callback import RunControl
from ..launcher import ArmJob
from .cluster_task import execute_on_node
from .slurm import task_file, write_pickle

_PREEMPTED = "Slurm ends the task"


def main(shared: Path, folder: Path) -> int:
    """Execute the arm of this task; without a result file it counts as lost and is retried."""
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    job: ArmJob = pickle.loads(task_file(folder, index, "job").read_bytes())
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")):  # requeued: resume from its checkpoint
        job = replace(job, resume=True)
    control = RunControl()

    def preempt(signum: int, frame: object) -> None:
        control.stop(_PREEMPTED, interrupted=True)

    signal.signal(signal.SIGTERM, preempt)
    result = execute_on_node(shared, job, task_file(folder, index, "stop"), control)
    if result.status == "cancelled" and control.stop_reason == _PREEMPTED:
        return 1
    write_pickle(task_file(folder, index, "result"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
