"""`run.eval`: scores by the backend's own sampler, honest about what they were measured on and about what failed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk import InProcessVerifier, RunResult, register_algorithm, register_metric
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.eval.row_tasks import tasks_of_rows
from evsys_sdk.experiment import ExperimentResult
from evsys_sdk.rollouts.rollout import opening

type Run = Callable[..., ExperimentResult]

LEARNED = {"max_steps": 40, "batch_size": 6, "learning_rate": 5e-3}


@pytest.fixture
def scored(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}


def eval_lines(result: ExperimentResult, folder: str = "validation") -> list[dict[str, Any]]:
    path = result.path / "r" / "logs" / folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_model_that_has_learned_scores_full_marks_and_one_that_has_not_scores_none(
    run: Run, scored: dict[str, Any]
) -> None:
    [learned] = run({"eval": scored}, params=LEARNED).runs
    [untrained] = run({"eval": scored}, params={"max_steps": 1}).runs
    assert learned.metrics["eval/exact_match"] == 1.0
    assert untrained.metrics["eval/exact_match"] == 0.0
    assert learned.notes.selection_metric == "eval/exact_match"


def test_it_is_scored_at_the_start_on_the_beat_and_at_the_end_and_the_best_is_kept(
    run: Run, scored: dict[str, Any]
) -> None:
    result = run({"eval": scored}, params={**LEARNED, "eval_every": 15}, callbacks=[{"kind": "local_logger"}])
    lines = eval_lines(result)
    assert [line["step"] for line in lines] == [0, 15, 30, 40]
    scores = {line["step"]: line["exact_match"] for line in lines if line["step"]}
    first_best = min(step for step in scores if scores[step] == max(scores.values()))
    best = Path(result.runs[0].artifacts["best_checkpoint"]).parent.name
    assert best.startswith(f"step{first_best:06d}")
    rollouts = (result.path / "r" / "logs" / "validation" / "rollouts.jsonl").read_text(encoding="utf-8")
    assert json.loads(rollouts.splitlines()[-1])["prediction"] == "FROST"


def test_scoring_changes_nothing_about_the_training(run: Run, scored: dict[str, Any]) -> None:
    watched = run({"eval": scored}, params={"eval_every": 1}).runs[0].metrics
    alone = run().runs[0].metrics
    assert {key: watched[key] for key in alone} == alone


def test_without_eval_data_the_score_is_called_what_it_is_and_selects_nothing(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        [run_result] = run({"eval": {"metrics": [{"kind": "exact_match"}]}}, params=LEARNED).runs
    assert run_result.metrics["train_fit/exact_match"] == 1.0
    assert "eval/exact_match" not in run_result.metrics
    assert run_result.notes.selection_metric == "loss"
    assert "says nothing about new rows" in caplog.text


def test_n_samples_caps_what_is_scored(run: Run, scored: dict[str, Any]) -> None:
    counts: list[int] = []

    @register_metric("counts")
    class Counts:
        def compute(self, *, predictions: Any, targets: Any) -> float:
            counts.append(len(predictions))
            return 0.0

    run({"eval": {**scored, "metrics": [{"kind": "counts"}], "n_samples": 2}}, params={"max_steps": 1})
    assert max(counts) == 2


@pytest.mark.parametrize("off", [{"enabled": False}, {"metrics": []}])
def test_nothing_is_scored_when_nothing_is_requested(off: dict[str, Any], run: Run, scored: dict[str, Any]) -> None:
    result = run({"eval": {**scored, **off}}, params={"max_steps": 1})
    assert result.exit_code == 0
    assert not [key for key in result.runs[0].metrics if key.startswith("eval/")]


def test_the_same_metric_twice_keeps_both_scores(run: Run, scored: dict[str, Any]) -> None:
    [run_result] = run({"eval": {**scored, "metrics": [{"kind": "exact_match"}] * 2}}, params={"max_steps": 1}).runs
    assert {"eval/exact_match", "eval/exact_match-2"} <= set(run_result.metrics)


def test_an_algorithm_that_does_not_score_itself_is_scored_afterwards(run: Run, scored: dict[str, Any]) -> None:
    @register_algorithm("idle")
    class Idle:
        def train(self, ctx: Any) -> RunResult:
            return RunResult(ctx.run_id, "completed", {"own": 1.0})

    [run_result] = run({"algorithm": {"kind": "idle"}, "eval": scored}).runs
    assert run_result.metrics == {"own": 1.0, "eval/exact_match": 0.0, "eval/exact_match/stderr": 0.0}


def failing_metric(behaviour: str) -> str:
    @register_metric("failing")
    class Failing:
        def compute(self, *, predictions: Any, targets: Any) -> Any:
            if behaviour == "raises":
                raise RuntimeError("the judge is ill")
            return {"is nan": float("nan"), "is text": "good"}[behaviour]

    return "failing"


@pytest.mark.parametrize("behaviour", ["raises", "is nan", "is text"])
def test_a_scoring_that_fails_neither_fails_the_run_nor_vanishes(
    behaviour: str, run: Run, scored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kind = failing_metric(behaviour)
    with caplog.at_level(logging.ERROR, logger="evsys_sdk"):
        result = run({"eval": {**scored, "metrics": [{"kind": kind}]}})
    [run_result] = result.runs
    assert (run_result.status, run_result.metrics["steps"], result.exit_code) == ("completed", 6, 2)
    assert run_result.notes.unscored
    assert not [key for key in run_result.metrics if key.startswith("eval/")]
    assert "the evaluation after step 6 failed" in caplog.text
    written = json.loads((result.path / "r" / "run_result.json").read_text(encoding="utf-8"))
    assert written["extras"]["unscored"] == run_result.notes.unscored


@pytest.mark.parametrize(
    ("eval_data", "reason"),
    [
        ({"path": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"source_kind": "in_memory", "rows": [{"messages": [{"role": "user", "content": "?"}]}]}, "eval row 1 has no"),
        ({"source_kind": "in_memory", "rows": [{"prompt": "x" * 5000, "answer": "y"}]}, "the conversation has 50"),
    ],
    ids=["missing file", "no target", "too long"],
)
def test_rows_that_cannot_be_scored_leave_the_run_trained_and_unscored(
    eval_data: dict[str, Any], reason: str, run: Run
) -> None:
    result = run({"eval": {"metrics": [{"kind": "exact_match"}], "eval_data": eval_data}}, checked=True)
    assert (result.runs[0].status, result.exit_code) == ("completed", 2)
    assert reason in result.runs[0].notes.unscored


def test_a_failure_in_between_is_forgiven_when_the_last_scoring_works(run: Run, scored: dict[str, Any]) -> None:
    @register_metric("late")
    class Late:
        calls = 0

        def compute(self, *, predictions: Any, targets: Any) -> float:
            Late.calls += 1
            if Late.calls < 3:
                raise RuntimeError("warming up")
            return 0.25

    result = run({"eval": {**scored, "metrics": [{"kind": "late"}]}}, params={"eval_every": 3})
    assert (result.exit_code, result.runs[0].metrics["eval/late"]) == (0, 0.25)


def test_a_prompt_near_the_end_of_the_context_still_gets_the_room_there_is(run: Run) -> None:
    rows = [{"prompt": "x" * 200, "answer": "y"}]
    evaluation = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}
    backend = {"kind": "mock", "params": {"context_length": 256}}
    result = run({"eval": evaluation, "backend": backend}, params={"max_steps": 1})
    assert result.runs[0].notes.unscored is None


# Prompts and targets

USER = {"role": "user", "content": "q"}
ASSISTANT = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("row", "prompt", "target"),
    [
        ({"messages": [USER, ASSISTANT]}, [USER], "a"),
        ({"messages": [USER, ASSISTANT, USER, {**ASSISTANT, "content": "b"}]}, [USER, ASSISTANT, USER], "b"),
        ({"messages": [USER], "target_assistant": "t"}, [USER], "t"),
        ({"messages": [USER], "answer": 7}, [USER], "7"),
        ({"messages": [USER], "tool_slug": "search"}, [USER], "search"),
        ({"prompt": "q", "answer": "a", "toolkit": "web"}, [USER], "a"),
        ({"prompt": [USER, ASSISTANT, USER], "answer": "z"}, [USER, ASSISTANT, USER], "z"),
        ({"messages": [USER, ASSISTANT, USER]}, [USER], "a"),
        ({"messages": [USER, {**ASSISTANT, "content": [{"type": "text", "text": "a"}]}]}, [USER], "a"),
    ],
)
def test_prompt_and_target_of_a_row(row: dict[str, Any], prompt: list[Any], target: str) -> None:
    [task] = tasks_of_rows([row])
    assert (opening(task), task.verifier) == (prompt, InProcessVerifier("exact_match", expected=target))


def test_a_tools_reply_stays_what_it_is() -> None:
    reply = {"role": "tool", "content": "7", "tool_call_id": "c"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    [task] = tasks_of_rows([{"messages": [USER, call, reply, ASSISTANT]}])
    assert opening(task) == [USER, call, reply]


def test_rows_that_are_tasks_keep_their_verifier() -> None:
    verifier = {"kind": "in_process", "fn_name": "contains", "expected": "a"}
    [task] = tasks_of_rows([{"task_id": "t", "instruction": "q", "verifier": verifier}])
    assert (task.task_id, task.verifier) == ("t", InProcessVerifier("contains", expected="a"))


def test_no_rows_are_an_error_and_not_a_score() -> None:
    with pytest.raises(DataError, match="no rows to score"):
        tasks_of_rows([])


def test_only_what_is_in_the_answer_tag_is_compared(run: Run) -> None:
    seen: list[Mapping[str, Any]] = []

    @register_metric("looks")
    class Looks:
        def compute(self, *, predictions: Any, targets: Any) -> float:
            seen.append({"targets": targets})
            return 1.0

    rows = [{"prompt": "q", "answer": "because <answer> blue </answer>"}]
    evaluation = {"metrics": [{"kind": "looks"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}
    run({"eval": evaluation}, params={"max_steps": 1})
    assert seen[0] == {"targets": ["blue"]}


# Who answers


def test_an_inference_client_is_asked_where_the_config_names_one_and_selects_nothing(
    run: Run, scored: dict[str, Any]
) -> None:
    from evsys_sdk import register_inference

    prompts: list[str] = []

    @register_inference("oracle")
    class Oracle:
        name = "oracle"

        class Config(BaseModel):
            style: str

        def __init__(self, **params: Any) -> None:
            assert self.Config(**params).style == "loud"

        def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Any = None) -> str:
            prompts.append(prompt)
            return next(
                word.upper() for word in ("amber", "birch", "cedar", "dune", "ember", "frost") if word in prompt
            )

    evaluation = {**scored, "inference": {"kind": "oracle", "params": {"style": "loud"}}}
    [run_result] = run({"eval": evaluation}, params={"max_steps": 1}).runs
    assert run_result.metrics["eval/exact_match"] == 1.0
    assert len(prompts) == 6
    assert run_result.notes.selection_metric == "loss"


@pytest.mark.parametrize("params", [{}, {"max_tokens": 32, "seed": 7}])
def test_a_block_without_a_model_asks_the_model_just_trained(
    params: dict[str, Any], run: Run, scored: dict[str, Any]
) -> None:
    inference = {"kind": "mock", "params": params}
    [run_result] = run({"eval": {**scored, "inference": inference}}, params=LEARNED).runs
    assert run_result.metrics["eval/exact_match"] == 1.0
    assert run_result.notes.selection_metric == "eval/exact_match"


def test_a_block_without_a_model_says_how_to_sample(run: Run, scored: dict[str, Any]) -> None:
    inference = {"kind": "mock", "params": {"max_tokens": 1}}
    [run_result] = run({"eval": {**scored, "inference": inference}}, params=LEARNED).runs
    assert run_result.metrics["eval/exact_match"] == 0.0


def test_metrics_of_rewards_score_a_run_too(run: Run, scored: dict[str, Any]) -> None:
    metrics = [{"kind": "mean_reward"}, {"kind": "pass_at_k"}, {"kind": "pass@1"}]
    [run_result] = run({"eval": {**scored, "metrics": metrics}}, params=LEARNED).runs
    assert [run_result.metrics[f"eval/{metric['kind']}"] for metric in metrics] == [1.0, 1.0, 1.0]
    assert (run_result.metrics["steps"], "unscored" in run_result.extras) == (40, False)


def test_more_attempts_than_run_eval_makes_are_refused_before_training(run: Run, scored: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"pass_at_k needs 3 answers per row, and run\.eval samples one"):
        run({"eval": {**scored, "metrics": [{"kind": "pass_at_k", "params": {"k": 3}}]}})


def test_a_checkpoint_of_the_mock_backend_can_be_asked_too(run: Run, scored: dict[str, Any]) -> None:
    learned = run({"eval": scored}, params=LEARNED).runs[0]
    inference = {"kind": "mock", "params": {"checkpoint": learned.artifacts["final_sampler"]}}
    [run_result] = run({"eval": {**scored, "inference": inference}}, params={"max_steps": 1}).runs
    assert run_result.metrics["eval/exact_match"] == learned.metrics["eval/exact_match"] == 1.0


def test_an_inference_client_that_fails_leaves_the_run_unscored(run: Run, scored: dict[str, Any]) -> None:
    inference = {"kind": "mock", "params": {"checkpoint": "nowhere"}}
    result = run({"eval": {**scored, "inference": inference}}, params={"max_steps": 1})
    assert (result.runs[0].status, result.exit_code) == ("completed", 2)
    assert "nowhere" in result.runs[0].notes.unscored


def test_a_backend_without_a_training_client_is_refused_or_another_model_answers(
    run: Run, scored: dict[str, Any]
) -> None:
    from evsys_sdk import register_backend

    @register_backend("bare")
    class Bare:
        name = "bare"

        def prepare(self, **_: Any) -> dict[str, Any]:
            return {}

        def teardown(self, handles: dict[str, Any]) -> None: ...

    @register_algorithm("idle")
    class Idle:
        def train(self, ctx: Any) -> RunResult:
            return RunResult(ctx.run_id, "completed")

    bare = {"backend": {"kind": "bare"}, "algorithm": {"kind": "idle"}}
    result = run({**bare, "eval": scored})
    assert result.exit_code == 2
    assert "gives no training_client, so that run.eval cannot be scored" in str(result.runs[0].error)
    result = run({**bare, "eval": {**scored, "inference": {"kind": "mock", "params": {"model": "tiny"}}}})
    assert result.exit_code == 0
    assert "eval/exact_match" in result.runs[0].metrics
