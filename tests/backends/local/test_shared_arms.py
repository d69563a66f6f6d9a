"""Arms of one experiment in one process on one GPU, which is pretended: same results, and a way on when it is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.usefixtures("examples")]

from evsys_sdk import ExperimentConfig, load_yaml  # noqa: E402
from evsys_sdk.backends.client import ModelSpec  # noqa: E402
from evsys_sdk.backends.local.backend import LocalBackend  # noqa: E402
from evsys_sdk.experiment import Experiment  # noqa: E402

ARMS, STEPS, PATIENCE_S = 3, 6, 120


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def experiment(model: str, folder: Path, *, together: bool, steps: int = STEPS) -> ExperimentConfig:
    """The quickstart with a few seeds, on a tiny model."""
    config = load_yaml("examples/01_quickstart/config.yaml").model_dump(mode="json", exclude_unset=True)
    run = config["run"]
    run["model"] = {"name": model}
    params = {"device": "cpu", "exact": True, "join_passes": "always" if together else "never"}
    run["backend"] = {"kind": "local", "params": params}
    run["algorithm"]["params"].pop("num_epochs", None)
    run["algorithm"]["params"] |= {"max_steps": steps, "eval_every": None, "save_every": 2}
    config |= {"output_dir": str(folder), "n_repeats": ARMS, "callbacks": []}
    if together:
        config["launcher"] = {"kind": "local", "params": {"arms_per_gpu": ARMS}}
    return ExperimentConfig.model_validate(config)


def losses(folder: Path) -> dict[str, list[float]]:
    by_seed: dict[str, list[float]] = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        lines = map(json.loads, path.read_text("utf-8").splitlines())
        by_step = {line["step"]: line["loss"] for line in lines if "loss" in line}
        by_seed[next(part for part in path.parts if "seed" in part)] = [by_step[step] for step in sorted(by_step)]
    return by_seed


def workers() -> list[int]:
    """Processes that this one has started to execute arms."""
    pids: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text("utf-8").rpartition(")")[2].split()[1])
            command = (path.parent / "cmdline").read_text("utf-8")
        except OSError:
            continue
        if parent == os.getpid() and "launchers.worker" in command:
            pids.append(int(path.parent.name))
    return pids


def test_arms_in_one_process_have_the_losses_they_have_alone(llama: str, tmp_path: Path) -> None:
    pids: set[int] = set()
    with watching(lambda: pids.update(workers())):
        together = Experiment(experiment(llama, tmp_path / "together", together=True)).run()
    apart = Experiment(experiment(llama, tmp_path / "apart", together=False)).run()
    assert [run.status for run in together.runs] == ["completed"] * ARMS, [run.error for run in together.runs]
    assert len(pids) == 1, "all arms share a process"
    ours, theirs = losses(together.path), losses(apart.path)
    assert ours.keys() == theirs.keys()
    for arm, arm_losses in ours.items():
        assert arm_losses == pytest.approx(theirs[arm], rel=1e-3)


def test_arms_whose_shared_process_is_lost_continue_one_by_one(llama: str, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_after_a_checkpoint() -> None:
        if not killed and list(tmp_path.rglob("step000002*")):
            killed.extend(workers())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    with watching(kill_after_a_checkpoint):
        result = Experiment(experiment(llama, tmp_path, together=True, steps=40)).run()
    assert killed
    assert [run.status for run in result.runs] == ["completed"] * ARMS, [run.error for run in result.runs]
    journal = next(result.path.glob("*.jsonl")).parent
    text = "".join(path.read_text("utf-8") for path in journal.glob("*.jsonl"))
    assert "arm_retried" in text
    for loss in losses(result.path).values():
        assert len(loss) == 40


def test_how_many_arms_fit_follows_from_free_memory(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = LocalBackend().arms_that_fit
    for free, expected in ((None, 1), (1 << 40, 8), (1, 1)):
        monkeypatch.setattr("evsys_sdk.backends.local.memory.free_on_gpus", lambda free=free: free)
        assert fits(ModelSpec(llama)) == expected
    monkeypatch.setattr("evsys_sdk.backends.local.memory.free_on_gpus", lambda: 1 << 40)
    assert LocalBackend(join_passes="never").arms_that_fit(ModelSpec(llama)) == 1


class watching:
    """Do something again and again next to a block."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._ended = work, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not self._ended.wait(0.05) and time.monotonic() < ends:
            self._work()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
