"""A limit of time ends an experiment with scored weights and a conclusion, wherever it falls."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig, dump_yaml
from evsys_sdk.cli.main import main
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.search import allocation_for
from evsys_sdk.record.ledger import read_tally

from ..ticking import TickingClock

type Config = Callable[..., ExperimentConfig]


def limited(config: Config, tmp_path: Path, *, name: str, **more: Any) -> ExperimentConfig:
    """Two runs of two seeds with far more steps than time, scored on a test set."""
    tasks = tmp_path / "tasks.jsonl"
    rows = [
        {
            "task_id": f"t{at}",
            "instruction": f"say {at}",
            "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": str(at)},
        }
        for at in range(12)
    ]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    metadata = {
        "hypothesis": {"claim": "b beats a", "metric": "pass@1", "baseline": "a"},
        "benchmark": [{"name": "words", "path": str(tasks), "split": "test", "max_tokens": 8}],
    }
    params = {"max_steps": 100_000, "batch_size": 6, "save_every": 20}
    runs = [{"name": "a"}, {"name": "b"}]
    return config(params=params, runs=runs, n_repeats=2, name=name, metadata=metadata, **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TickingClock:
    return TickingClock(monkeypatch, "spend.meter", "spend.ledger", "experiment.deadline", "experiment.experiment")


def check_end(folder: Path) -> None:
    conclusion = json.loads((folder / "conclusion.json").read_text("utf-8"))
    assert conclusion["verdict"] != "invalid"
    assert "topped by the deadline" in conclusion["summary"]
    results = [json.loads(path.read_text("utf-8")) for path in folder.glob("*/run_result.json")]
    scored = [result for result in results if "test/words/pass@1" in result["metrics"]]
    assert scored
    assert all(score["artifacts"]["final_checkpoint"] for score in scored)


@pytest.mark.parametrize("seed", range(4))
def test_time_runs_out_after_scoring_and_a_conclusion(
    config: Config, tmp_path: Path, clock: TickingClock, seed: int
) -> None:
    wall_s = random.Random(seed).uniform(1.0, 6.0)
    result = Experiment(limited(config, tmp_path, name="late", budget={"wall_s": wall_s})).run()
    assert (result.status, result.exit_code) == ("budget", 3)
    check_end(result.path)
    assert read_tally(result.path).total().wall_s <= max(1.05 * wall_s, wall_s + 5)
    [first, *_] = result.arms
    assert first.result.notes.stop_reason is not None
    assert first.result.notes.stop_reason.startswith("budget: deadline")


def test_more_time_continues_where_the_deadline_ended_it(config: Config, clock: TickingClock) -> None:
    first = Experiment(config(name="more", params={"max_steps": 100_000}, budget={"wall_s": 2.0})).run()
    assert first.exit_code == 3
    before = first.arms[0].metrics["steps"]
    second = Experiment(config(name="more", params={"max_steps": 100_000}, budget={"wall_s": 4.0})).run()
    assert second.path == first.path
    assert second.arms[0].metrics["steps"] > before > 0


def test_seeds_go_in_rounds_where_something_is_limited(config: Config, tmp_path: Path) -> None:
    for budget, order in (({"wall_s": 60}, "a43 b43 a44 b44"), (None, "a43 a44 b43 b44")):
        result = limited(config, tmp_path, name="rounds", budget=budget, base_seed=43)
        arms = allocation_for(result, Experiment(result).arms, tmp_path).decide([]).arms
        assert [f"{arm.of_run}{arm.seed}" for arm in arms] == order.split()


def test_a_deadline_too_short_for_one_scoring_is_refused(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"budget\.wall_s: scoring one run takes about"):
        Experiment(limited(config, tmp_path, name="short", budget={"wall_s": 1e-6})).run()
    assert not list(tmp_path.glob("outputs/*/spend.jsonl"))


@pytest.mark.parametrize("given", ["6 o'clock", "25:00", "2020-01-01T06:00"])
def test_a_time_that_is_none_is_refused(
    config: Config, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump_yaml(limited(config, tmp_path, name="late"), tmp_path / "config.yaml")
    assert main(["run", str(tmp_path / "config.yaml"), "--until", given]) != 0
    assert "--until" in capsys.readouterr().err
    assert not list(tmp_path.glob("outputs/*/spend.jsonl"))
