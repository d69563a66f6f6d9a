"""Arms as tasks of a real Slurm of one node: the same scores as on this machine, also after a task was requeued."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig, ExperimentResult
from evsys_sdk.experiment import Experiment
from evsys_sdk.settings import import_project_code

from .slurm_cluster import missing, slurm_cluster

type Config = Callable[..., ExperimentConfig]
needs_slurm = [
    pytest.mark.slow,
    pytest.mark.skipif("EVSYS_TEST_SLURM" not in os.environ, reason="starts a Slurm of one node; run make test-slurm"),
    pytest.mark.skipif(bool(missing()), reason=f"Slurm and munge, as root; not here: {', '.join(missing())}"),
]
CODE = """
import os, time
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

@register_callback("waits_once")
class WaitsOnce(Callback):
    def on_run_start(self, info, control):
        self.waits = info.run_dir.name == "a" and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        self.waits = self.waits and "SLURM_JOB_ID" in os.environ
        self.file = info.run_dir.parent / "task.txt"

    def on_step(self, step, metrics):
        if self.waits and step == 3:
            self.file.write_text(f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}")
            time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with slurm_cluster(tmp_path / "slurm") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


def requeue_when_it_waits(folder: Path) -> None:
    """What a preemption does to the task of arm `a`, once it has trained three steps."""
    note = folder / "task.txt"
    while not note.exists() or not note.read_text("utf-8"):
        time.sleep(0.1)
    subprocess.run(["scontrol", "requeue", note.read_text("utf-8")], check=True)


def scores(result: ExperimentResult) -> list[Any]:
    return [(arm.arm.name, arm.status, arm.metrics["final_loss"], arm.metrics["steps"]) for arm in result.arms]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("_", [pytest.param(0, marks=needs_slurm)])
def test_arms_on_slurm_have_the_same_scores_and_a_requeued_one_continues(
    _: int, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("waits.py").write_text(CODE, "utf-8")
    import_project_code(["waits.py"])
    runs = [{"name": name, "seed": seed} for seed, name in enumerate("abc")]
    more = {"callbacks": [{"kind": "waits_once"}]}
    params = {"max_steps": 6, "save_every": 2}
    here = Experiment(config(runs=runs, params=params, name="here", **more)).run()
    launcher = {"kind": "slurm", "params": {"poll_s": 0.5}}
    there = config(runs=runs, params=params, name="there", launcher=launcher, **more)
    folder = Path(there.output_dir) / "there"
    threading.Thread(target=requeue_when_it_waits, args=(folder,), daemon=True).start()
    result = Experiment(there).run()
    assert scores(result) == scores(here)
    assert (folder / "task.txt").exists()
    assert not list(Path(".evsys/slurm").iterdir())


def test_a_machine_without_slurm_and_a_time_limit_that_counts_the_queue_are_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch on PATH"):
        Experiment(config(launcher={"kind": "slurm"})).run()
    (tmp_path / "sbatch").write_text("#!/bin/sh\n", "utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    with pytest.raises(ConfigError, match=r"launcher\.params\.time"):
        Experiment(config(launcher={"kind": "slurm"}, arm_timeout_s=60.0, name="limited")).run()
