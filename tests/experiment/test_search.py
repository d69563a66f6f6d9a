"""Searches end to end on the mock backend: what is trained, what is recorded, and how it goes on after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_verifier_fn
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.record.events import Event, read_events
from evsys_sdk.record.run_files.checkpoints import CheckpointLog

type Make = Callable[..., ExperimentConfig]

WORDS = ["amber", "birch", "cedar", "dune", "ember", "frost", "grove", "heath"]
RATES = [1e-4, 1e-3, 1e-2, 2e-2]
HALVING = {"kind": "halving", "eta": 2, "finalists": 1}


@register_verifier_fn("letters_of_search_tests")
def letters(model_output: str, expected: str, params: Any) -> float:
    if "broken" in params:
        raise RuntimeError("the judge is away")
    return sum(said == meant for said, meant in zip(model_output.strip(), expected, strict=False)) / len(expected)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Four learning rates, twelve steps each, val scored every third."""

    def config(search: dict[str, Any] | None, *, run_every: int = 3, **more: Any) -> ExperimentConfig:
        verifier = {"kind": "in_process", "fn_name": "letters_of_search_tests"}
        tasks = [
            {"task_id": word, "instruction": word, "verifier": {**verifier, "expected": word.upper()}} for word in WORDS
        ]
        (tmp_path / "val.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
        (tmp_path / "train.jsonl").write_text(
            "".join(json.dumps({"prompt": word, "completion": word.upper()}) + "\n" for word in WORDS), encoding="utf-8"
        )
        entry = {
            "name": "v",
            "path": str(tmp_path / "val.jsonl"),
            "split": "val",
            "run_every": run_every,
            "max_tokens": 6,
            "metrics": ["mean_reward"],
        }
        base = {
            "name": "r",
            "data": {"path": str(tmp_path / "train.jsonl"), "transforms": [{"kind": "jsonl_to_chat"}]},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": 12, "batch_size": 4}},
            "backend": {"kind": "mock", "params": {"hidden": 16}},
        }
        given = {
            "name": "e",
            "output_dir": str(tmp_path / "outputs"),
            "metadata": {"success_metric": "mean_reward", "benchmark": entry},
            "base_run": base,
            "matrix": {"axes": {"algorithm.params.learning_rate": RATES}},
            "search": search,
            **more,
        }
        return ExperimentConfig.model_validate({key: value for key, value in given.items() if value is not None})

    return config


def run(config: ExperimentConfig, *, checked: bool = False, **options: Any) -> ExperimentResult:
    return Experiment(config, checked=checked).run(**options)


def decisions(path: Path) -> list[dict[str, Any]]:
    found = [event for event in map(Event.to_dict, read_events(path)) if event["kind"] == "search_decision"]
    return [{key: value for key, value in event.items() if key not in ("id", "time", "kind")} for event in found]


def steps(result: ExperimentResult) -> dict[str, float]:
    return {one.run_id.removeprefix("r__learning_rate"): one.metrics["steps"] for one in result.runs}


def record(path: Path) -> dict[str, Any]:
    """What every arm scored, how it ended, and with which weights."""
    found: dict[str, Any] = {"decisions": decisions(path)}
    for folder in sorted(one for one in path.iterdir() if (one / "run_result.json").exists()):
        result = json.loads((folder / "run_result.json").read_text(encoding="utf-8"))
        last = CheckpointLog.in_dir(folder).last()
        assert last is not None
        lines = (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()
        found[folder.name] = {
            "status": result["status"],
            "metrics": result["metrics"],
            "stopped": result["extras"].get("stopped_by_search"),
            "scores": [{**json.loads(line), "seconds": 0} for line in lines],
            "weights": [file.read_bytes() for file in sorted(Path(last.state).glob("*.npz"))],
        }
    return found


def test_halving_trains_few_to_the_end_and_says_why_it_stopped_the_others(make: Make) -> None:
    grid = run(make(None))
    result = run(make(HALVING, name="halving"))
    assert (result.status, result.exit_code) == ("completed", 0)
    assert sorted(steps(result).values()) == [3, 3, 6, 12]
    first, second = decisions(result.path)
    assert (first["rung"], first["step"], second["rung"], second["step"]) == (1, 3, 2, 6)
    assert first["metric"] == "val/v/mean_reward"
    assert sorted([*first["kept"], *first["stopped"]]) == sorted(arm.name for arm in result.arms)
    for arm in result.arms:
        on_disk = json.loads((result.path / arm.name / "run_result.json").read_text(encoding="utf-8"))
        stopped = arm.name in [*first["stopped"], *second["stopped"]]
        assert on_disk["status"] == arm.status == ("cancelled" if stopped else "completed")
        assert ("stopped_by_search" in on_disk["extras"]) is stopped
        assert arm.is_as_planned
        assert arm.result.error is on_disk["error"] is None
        # What was scored on the way is what the grid scored there.
        whole = CheckpointLog.in_dir(grid.path / arm.name).scores()
        part = CheckpointLog.in_dir(result.path / arm.name).scores()
        assert part == {step: whole[step] for step in part}
    loser = next(arm for arm in result.arms if arm.name == first["stopped"][0])
    score = first["scores"][loser.name]
    assert loser.result.notes.stopped_by_search == (
        f"after step 3 its val/v/mean_reward of {score:.4g} was not among the best 2 of 4"
    )


def test_several_arms_at_a_time_decide_the_same(make: Make) -> None:
    one, many = run(make(HALVING, name="one")), run(make(HALVING, name="many", max_concurrent_arms=3))
    assert decisions(one.path) == decisions(many.path)
    assert steps(one) == steps(many)


def test_a_finished_search_is_recalled_as_a_whole(make: Make) -> None:
    first = run(make(HALVING))
    before = record(first.path)
    again = run(make(HALVING), resume=True)
    assert again.path == first.path
    assert again.exit_code == 0
    assert record(again.path) == before
    events = list(map(Event.to_dict, read_events(again.path)))
    resumed = next(index for index, event in enumerate(events) if event["kind"] == "experiment_resumed")
    assert "arm_started" not in {event["kind"] for event in events[resumed:]}


def test_an_arm_without_a_score_is_stopped_as_unscored_and_the_rest_goes_on(make: Make, tmp_path: Path) -> None:
    config = make(HALVING)
    broken = [json.loads(line) for line in (tmp_path / "val.jsonl").read_text(encoding="utf-8").splitlines()]
    for task in broken:
        task["verifier"]["params"] = {"broken": True}
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(task) + "\n" for task in broken), encoding="utf-8")
    result = run(config)
    assert (result.status, result.exit_code) == ("failed", 2)
    assert set(steps(result).values()) == {3}
    assert all("it has no val/v/mean_reward after step 3" in one.notes.unscored for one in result.runs)
    assert decisions(result.path)[0]["why"] == "none of 4 has a score, so none goes on"


def test_a_failing_arm_harms_no_other(make: Make, tmp_path: Path) -> None:
    runs = [one.model_dump(mode="json") for one in make(None).all_runs()]
    runs[2]["algorithm"]["params"]["max_length"] = 4  # nothing fits, which is an error of the arm
    result = run(make(HALVING, runs=runs, matrix=None, base_run=None), checked=True)
    assert result.exit_code == 2
    [failed] = [arm for arm in result.arms if arm.status == "failed"]
    assert failed.name == runs[2]["name"]
    first = decisions(result.path)[0]
    assert first["scores"][failed.name] is None
    assert failed.name in first["stopped"]
    assert {arm.status for arm in result.arms if arm.name != failed.name} == {"completed", "cancelled"}


def test_a_failed_arm_that_is_tried_again_may_change_the_decision(make: Make, tmp_path: Path) -> None:
    config = make(HALVING)
    runs = [one.model_dump(mode="json") for one in config.all_runs()]
    rows = (tmp_path / "train.jsonl").read_text(encoding="utf-8")
    runs[3]["data"]["path"] = str(tmp_path / "later.jsonl")
    config = make(HALVING, runs=runs, matrix=None, base_run=None)
    first = run(config, checked=True)  # what was there when it was checked, and is not when the arm reads it
    assert first.exit_code == 2
    before = decisions(first.path)
    (tmp_path / "later.jsonl").write_text(rows, encoding="utf-8")
    again = run(config, resume=True)
    assert again.exit_code == 0
    after = decisions(again.path)
    assert after[: len(before)] == before
    assert after[len(before)]["rung"] == 1
    assert all(score is not None for score in after[len(before)]["scores"].values())


def test_random_runs_and_the_note_about_them(make: Make) -> None:
    result = run(make({"kind": "random", "n": 2, "seed": 3}))
    assert len(result.arms) == 2
    [note] = decisions(result.path)
    assert note["sampled"] == [arm.name for arm in result.arms]
    assert note["why"] == "2 runs were drawn with seed 3"


def test_points_of_a_space_are_halved(make: Make) -> None:
    space = {"algorithm.params.learning_rate": {"low": 1e-4, "high": 3e-2, "scale": "log"}}
    result = run(make({**HALVING, "n": 4, "space": space}, matrix=None))
    assert result.exit_code == 0
    assert sorted(one.metrics["steps"] for one in result.runs) == [3, 3, 6, 12]
    recorded = json.loads((result.path / "config.json").read_text(encoding="utf-8"))
    assert len(recorded["runs"]) == 4
    assert recorded["search"]["space"] == {}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_steps": 3}, "has 3 steps and can first be compared after 3, which is too late"),
        ({"max_steps": None, "max_length": 4096, "too_long": "skip"}, "'sft' does not say before it trains"),
    ],
)
def test_a_run_that_cannot_be_compared_on_its_way_is_refused(
    params: dict[str, Any], message: str, make: Make, tmp_path: Path
) -> None:
    config = make(HALVING)
    assert config.base_run is not None
    base = {**config.base_run, "algorithm": {"kind": "sft", "params": {"batch_size": 4, **params}}}
    with pytest.raises(ConfigError, match="search.kind: .*" + message.replace("(", r"\(")):
        run(make(HALVING, base_run=base))
    assert not (tmp_path / "outputs").exists()


def test_the_length_of_a_run_is_found_from_its_rows(make: Make) -> None:
    config = make(HALVING)
    assert config.base_run is not None
    base = {**config.base_run, "algorithm": {"kind": "sft", "params": {"batch_size": 4, "num_epochs": 6}}}
    result = run(make(HALVING, base_run=base))
    assert sorted(steps(result).values()) == [3, 3, 6, 12]


def test_a_race_of_an_earlier_version_is_refused_with_what_to_do_instead(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"search\.race: races between seeds were removed.*until: decided"):
        run(make({"race": {"top": 2}}))
