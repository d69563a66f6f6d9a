"""A process that dies in the middle of any write loses nothing: resumed, it ends like one that never died.

Death is simulated where it hurts, inside the writes: the chosen one stops half-way, and from then on nothing reaches
the disk any more. `test_random_kills.py` does the same to real processes, at random moments.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment

from .timeless import is_compared, timeless

type Config = Callable[..., ExperimentConfig]

STRIDE = 17
"""How many writes later than the last one each attempt dies."""


class Killed(BaseException):
    """What a killed process would not live to see."""


class DyingDisk:
    """Counts writes, and fails for good in the middle of the one that is `fatal`."""

    def __init__(self, fatal: int | None = None) -> None:
        self.writes, self.fatal, self._write, self._fsync = 0, fatal, os.write, os.fsync

    def write(self, descriptor: int, data: Any) -> int:
        if self._dies():
            self._write(descriptor, bytes(data)[: len(data) // 2])
            self.fatal = 0
            raise Killed
        return self._write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        if self._dies():
            self.fatal = 0
            raise Killed
        self._fsync(descriptor)

    def _dies(self) -> bool:
        if self.fatal == 0:
            raise Killed
        self.writes += 1
        return self.writes == self.fatal


@pytest.fixture
def survives(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Run an experiment, or what is left of it; tells whether it lived to its end."""

    def run(config: ExperimentConfig, *, fatal: int | None = None) -> bool:
        disk = DyingDisk(fatal)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", disk.write)
                patch.setattr(os, "fsync", disk.fsync)
                result = Experiment(config).run(resume=True)
        except Killed:
            return False
        assert result.exit_code == 0, [run.error for run in result.runs]
        return True

    return run


def without_spend(extras: dict[str, Any]) -> dict[str, Any]:
    """What a repeated step costs is paid twice."""
    return {key: value for key, value in extras.items() if key != "spend"}


def record_of(experiment: Path) -> dict[str, Any]:
    """Everything an experiment leaves behind that is not a time, a path or the name of an attempt."""
    record: dict[str, Any] = {}
    for run in sorted(path for path in experiment.iterdir() if path.is_dir()):
        for path in run.rglob("*.jsonl"):
            if is_compared(path):
                record[str(path.relative_to(experiment))] = timeless(path)
        result = json.loads((run / "run_result.json").read_text(encoding="utf-8"))
        record[f"{run.name} result"] = (result["status"], result["metrics"], without_spend(result["extras"]))
        record[f"{run.name} weights"] = (Path(result["artifacts"]["final_checkpoint"]) / "weights.npz").read_bytes()
    return record


@pytest.fixture(params=["sft", "continual", "sweep"])
def make(
    request: pytest.FixtureRequest, config: Config, rows: list[dict[str, Any]]
) -> Callable[[str], ExperimentConfig]:
    """The experiment under test, under a name."""
    half = {"source_kind": "in_memory", "rows": rows[:3]}
    other = {"source_kind": "in_memory", "rows": rows[3:]}
    scored = {"metrics": [{"kind": "exact_match"}], "eval_data": half}
    stages = [{"name": "a", "data": half, "eval_data": half}, {"name": "b", "data": other, "eval_data": other}]
    # An untrained model talks until it is stopped.
    quick = {"backend": {"kind": "mock", "params": {"context_length": 64}}}
    changes: dict[str, Any] = {
        "sft": {"run": {"eval": scored, **quick}},
        "continual": {"run": {"data": None, "continual": {"stages": stages}, "eval": scored, **quick}},
        "sweep": {"runs": [{"name": "x"}, {"name": "y", "eval": scored, **quick}], "n_repeats": 2},
    }[request.param]
    params = {"max_steps": 6 if request.param == "sft" else 3, "save_every": 2, "eval_every": 3}
    callbacks = [
        {"kind": "local_logger", "params": {"predictions": False}},
        {"kind": "early_stopping", "params": {"metric": "loss", "patience": 1000}},
    ]
    return lambda name: config(**changes, params=params, callbacks=callbacks, name=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("first", [1, 14])
def test_a_run_that_dies_again_and_again_ends_like_one_that_did_not(
    first: int, make: Callable[[str], ExperimentConfig], survives: Callable[..., bool], tmp_path: Path
) -> None:
    assert survives(make("whole"))
    deaths = 0
    while not survives(make("broken"), fatal=first + deaths * STRIDE):
        deaths += 1
        gc.collect()  # the dead leave their files open
    assert deaths >= 2
    whole, broken = (record_of(tmp_path / "outputs" / name) for name in ("whole", "broken"))
    assert broken == whole
