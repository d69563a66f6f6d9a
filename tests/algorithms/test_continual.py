"""Continual learning: stage by stage from the last one's weights, with a record of what is left of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from evsys_sdk import RunConfig, register_metric
from evsys_sdk.algorithms.continual import Continual
from evsys_sdk.errors import ConfigError

COLOURS = {"grass": "green", "sky": "blue", "coal": "black", "snow": "white"}
SOUNDS = {"dog": "bark", "cat": "meow", "cow": "moo", "bee": "buzz"}


def rows(facts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": key}, {"role": "assistant", "content": value}]}
        for key, value in facts.items()
    ]


def stage(name: str, facts: Mapping[str, str], **more: Any) -> dict[str, Any]:
    data = {"source_kind": "in_memory", "rows": rows(facts)}
    return {"name": name, "data": data, "eval_data": data, **more}


STAGES = [stage("colours", COLOURS), stage("sounds", SOUNDS)]
PARAMS = {"max_steps": 40, "batch_size": 4, "learning_rate": 5e-3}
EVAL = {"metrics": [{"kind": "exact_match"}]}


def test_each_stage_learns_its_own_and_the_matrix_says_what_is_left_of_the_earlier_ones(
    train: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    trained = train("sft", continual={"stages": STAGES}, params=PARAMS, eval=EVAL)
    assert trained.result.status == "completed", trained.result.error
    matrix = trained.result.notes.retention
    assert list(matrix) == ["colours", "sounds"]
    assert list(matrix["colours"]) == ["colours"]  # the later stage has not been seen yet
    assert list(matrix["sounds"]) == ["colours", "sounds"]
    assert matrix["colours"]["colours"]["exact_match"] == 1.0
    assert matrix["sounds"]["sounds"]["exact_match"] == 1.0
    assert matrix["sounds"]["colours"]["exact_match"] == 0.0
    assert "every answer" not in caplog.text  # forgetting is what retention reports
    assert trained.result.metrics["retention/sounds/sounds/exact_match"] == 1.0
    assert trained.result.notes.unscored is None
    recorded = json.loads((trained.run_dir / "run_result.json").read_text(encoding="utf-8"))
    assert recorded["extras"]["retention"] == matrix


def test_a_stage_starts_from_the_weights_of_the_one_before(train: Callable[..., Any]) -> None:
    chained = train("sft", continual={"stages": STAGES}, params=PARAMS)
    first = train("sft", rows(COLOURS), params=PARAMS)
    start = {"init_from_checkpoint": first.result.artifacts["final_checkpoint"]}
    second = train("sft", rows(SOUNDS), params=PARAMS, model=start)
    cold = train("sft", rows(SOUNDS), params=PARAMS)
    assert chained.curve("loss") == first.curve("loss") + second.curve("loss")
    assert second.curve("loss")[0] != cold.curve("loss")[0]


def test_held_out_rows_of_a_stage_are_recorded_as_such_and_capped_by_n_samples(train: Callable[..., Any]) -> None:
    trained = train(
        "sft",
        continual={"stages": STAGES},
        params={**PARAMS, "max_steps": 2},
        eval={**EVAL, "n_samples": 3},
        callbacks=[{"kind": "local_logger"}],
    )
    lines = (trained.run_dir / "logs" / "validation" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [(line["split"], line["name"], line["step"]) for line in map(json.loads, lines)]
    assert evaluations == [("eval", "colours", 2), ("eval", "colours", 4), ("eval", "sounds", 4)]
    rollouts = (trained.run_dir / "logs" / "validation" / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rollouts) == 3 * 3
    assert not (trained.run_dir / "logs" / "train_fit").exists()


def test_params_of_a_stage_override_those_of_the_recipe(train: Callable[..., Any]) -> None:
    stages = [stage("colours", COLOURS), stage("sounds", SOUNDS, params={"max_steps": 3})]
    trained = train("sft", continual={"stages": stages}, params={**PARAMS, "max_steps": 2})
    assert [checkpoint.next_step for checkpoint in trained.checkpoints] == [2, 5]


def test_a_stage_that_cannot_be_scored_is_trained_and_reported_as_unscored(train: Callable[..., Any]) -> None:
    missing = {"path": "nowhere.jsonl"}
    stages = [STAGES[0], {**STAGES[1], "eval_data": missing}]
    trained = train("sft", continual={"stages": stages}, params={**PARAMS, "max_steps": 2}, eval=EVAL, checked=True)
    assert trained.result.status == "completed"
    assert trained.result.metrics["steps"] == 4
    assert "nowhere.jsonl" in trained.result.notes.unscored
    assert list(trained.result.notes.retention["sounds"]) == ["colours"]


def test_a_hole_in_the_matrix_is_reported_also_when_a_later_scoring_works(train: Callable[..., Any]) -> None:
    @register_metric("fails_once")
    class FailsOnce:
        calls = 0

        def compute(self, *, predictions: Any, targets: Any) -> float:
            FailsOnce.calls += 1
            if FailsOnce.calls == 1:
                raise RuntimeError("out of luck")
            return 1.0

    trained = train(
        "sft",
        continual={"stages": STAGES},
        params={**PARAMS, "max_steps": 2},
        eval={"metrics": [{"kind": "fails_once"}]},
    )  # fmt: skip
    assert trained.result.status == "completed"
    assert trained.result.notes.unscored == "the retention matrix has no score for colours after colours"


def test_metrics_without_rows_to_compute_them_on_leave_the_run_unscored(train: Callable[..., Any]) -> None:
    stages = [{key: value for key, value in stage.items() if key != "eval_data"} for stage in STAGES]
    trained = train("sft", continual={"stages": stages}, params={**PARAMS, "max_steps": 1}, eval=EVAL)
    assert trained.result.status == "completed"
    assert "no stage has eval_data" in trained.result.notes.unscored
    without = train("sft", continual={"stages": stages}, params={**PARAMS, "max_steps": 1})
    assert without.result.notes.unscored is None


def run_config(**more: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "model": {"name": "m"}, "continual": {"stages": STAGES}, **more})


def test_stages_cannot_have_their_own_adapters() -> None:
    stages = [STAGES[0], stage("sounds", SOUNDS, params={"lora_rank": 4})]
    with pytest.raises(ConfigError, match=r"adapters of different rank.*one adapter"):
        Continual(run_config(algorithm={"kind": "sft"}, continual={"stages": stages}))
