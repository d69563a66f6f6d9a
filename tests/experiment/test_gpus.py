"""Arms where there are two GPUs, on this machine or in a Ray cluster: a process each, and a GPU each.

What is not there is pretended; what an arm would see of it is real.
"""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment

type Config = Callable[..., ExperimentConfig]
CODE = """
import os
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

@register_callback("notes_gpu")
class NotesGpu(Callback):
    def on_run_start(self, info, control):
        seen = f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
        (info.run_dir.parent / f"{info.run_id}.gpu").write_text(seen)
"""
RUNS = [{"name": name, "seed": seed} for seed, name in enumerate("abcd")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose driver names two GPUs, and a project that notes which of them an arm sees."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU 0: one (UUID: x)"\necho "GPU 1: two (UUID: y)"\n', encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "gpu_notes.py").write_text(textwrap.dedent(CODE), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gpu_notes", raising=False)
    importlib.import_module("gpu_notes")
    return tmp_path


def seen_by(config: ExperimentConfig) -> dict[str, tuple[str, str]]:
    """Arm -> its process and the GPUs that it sees."""
    result = Experiment(config).run()
    assert result.exit_code == 0, [arm.result.error for arm in result.arms]
    notes = {arm.name: (result.path / f"{arm.name}.gpu").read_text(encoding="utf-8") for arm in result.arms}
    return {arm: (note.partition(" ")[0], note.partition(" ")[2]) for arm, note in notes.items()}


@pytest.mark.usefixtures("machine")
def test_arms_get_a_process_and_a_gpu_each(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.experiment.launchers.local.cpu_count", lambda: 64)
    visible = seen_by(config(runs=RUNS, launcher={"kind": "local"}, callbacks=[{"kind": "notes_gpu"}]))
    assert {gpu for _, gpu in visible.values()} == {"0", "1"}
    assert len(set(visible.values())) == len(RUNS), "code of the user's own gets a process for each arm"


@pytest.mark.usefixtures("machine")
def test_a_gpu_that_was_not_given_is_not_taken(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    noted = {"max_concurrent_arms": 2, "callbacks": [{"kind": "notes_gpu"}]}
    assert {gpu for _, gpu in seen_by(config(runs=RUNS[:2], **noted)).values()} == {"5", "7"}


@pytest.fixture
def cluster() -> Iterator[None]:
    ray: Any = pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    options = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
    yield
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("machine", "cluster")
def test_ray_gives_each_arm_a_gpu(config: Config) -> None:
    launcher = {"kind": "ray", "params": {"gpus_per_arm": 1}}
    params = {"max_steps": 400}  # long enough that both are there at the same time
    visible = seen_by(config(runs=RUNS[:2], params=params, launcher=launcher, callbacks=[{"kind": "notes_gpu"}]))
    assert {gpu for _, gpu in visible.values()} == {"0", "1"}
