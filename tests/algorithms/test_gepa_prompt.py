"""A prompt is tuned instead of weights: within its exact budget, recorded call by call, resumed without a second call.

The package `gepa` depends on nothing; without it these tests say so and are skipped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evsys_sdk import ExperimentConfig, register_inference
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.plan.plan import plan_experiment

pytest.importorskip("gepa", reason="needs the extra gepa: pip install 'evsys-sdk[gepa]'")

WORDS = ["please", "briefly", "kindly", "always"]


class Counted:
    """Counts its calls and those of `close`."""

    calls: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def close(self) -> None:
        type(self).closed += 1


class Pupil(Counted):
    """Answers a row rightly once the prompt has its word."""

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Any = None) -> str:
        type(self).calls += 1
        system, _, question = prompt.partition("user:")
        match = re.search(r"word (\w+)", question)
        assert match
        return "right" if match[1] in system else "wrong"


class Mentor(Counted):
    """Adds a word that the current prompt lacks, of those that the failures were about."""

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Any = None) -> str:
        type(self).calls += 1
        current = prompt.split("```")[1].strip()
        lacking = [word for word in WORDS if word not in current and f"word {word}" in prompt]
        return f"```\n{current} {(lacking or ['also'])[0]}\n```"


@pytest.fixture(autouse=True)
def models() -> None:
    Pupil.calls = Mentor.calls = Pupil.closed = Mentor.closed = 0
    register_inference("pupil")(Pupil)
    register_inference("mentor")(Mentor)


def config(**params: Any) -> ExperimentConfig:
    rows = [{"inputs": {"question": f"word {WORDS[n % 4]} number {n}"}, "expected": "right"} for n in range(16)]
    run = {
        "name": "prompt",
        "data": {"source_kind": "in_memory", "rows": rows},
        "model": {"name": "tiny"},
        "algorithm": {
            "kind": "gepa_prompt",
            "params": {"reflection": {"kind": "mentor"}, "task": {"kind": "pupil"}, "seed_prompt": "Go", **params},
        },
        "backend": {"kind": "mock"},
    }
    launcher = {"kind": "local", "params": {"arms_in": "threads"}}
    return ExperimentConfig.model_validate({"name": "tuned", "output_dir": "outputs", "launcher": launcher, "run": run})


def calls_on_disk() -> list[dict[str, Any]]:
    text = Path("outputs/tuned/prompt/prompt_calls.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_prompt_gets_better_within_its_budget() -> None:
    [run] = Experiment(config(budget=150)).run().runs
    assert run.status == "completed", run.error
    assert run.metrics["val/seed_score"] == 0.0
    assert run.metrics["val/score"] == 1.0
    assert run.metrics["metric_calls"] <= 150
    parsed = json.loads(Path("outputs/tuned/prompt/prompts.json").read_text("utf-8"))
    assert all(word in parsed["best"] for word in WORDS)
    assert [candidate["score"] for candidate in parsed["candidates"]] == sorted(
        candidate["score"] for candidate in parsed["candidates"]
    )
    assert len(parsed["pareto"]) == 8
    scored_calls = [call for call in calls_on_disk() if "score" in call]
    assert len(scored_calls) == Pupil.calls <= run.metrics["metric_calls"]
    assert (Pupil.closed, Mentor.closed) == (1, 1), "nobody else lets go of them"


@pytest.mark.parametrize("budget", [50, 57, 64, 71, 83])
def test_the_budget_is_never_exceeded(budget: int) -> None:
    [run] = Experiment(config(budget=budget)).run().runs
    assert run.status == "completed", run.error
    assert run.metrics["metric_calls"] <= budget
    assert run.metrics["metric_calls"] + 14 > budget or run.metrics["val/score"] == 1.0


def test_a_search_that_was_killed_asks_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    Experiment(config(budget=150)).run()
    whole, pupil_calls, reflected = calls_on_disk(), Pupil.calls, Mentor.calls
    path = Path("outputs/tuned/prompt/prompt_calls.jsonl")
    first_half = path.read_text("utf-8").splitlines(keepends=True)[: len(whole) // 2]
    fresh = Path("outputs/again/prompt")
    fresh.mkdir(parents=True)
    (fresh / "prompt_calls.jsonl").write_text("".join(first_half) + '{"key": "half', "utf-8")
    again = config(budget=150).model_copy(update={"name": "tuned"})
    from evsys_sdk.record.run_files.prompt_calls import PromptCalls

    assert PromptCalls(fresh).find(whole[0]["key"]) == whole[0]
    Pupil.calls = Mentor.calls = 0
    path.write_text("".join(first_half), "utf-8")
    for name in ("run_result.json", "prompts.json"):
        (path.parent / name).unlink()
    Experiment(again).run(resume=True)
    assert Pupil.calls + Mentor.calls == pupil_calls + reflected - len(first_half)
    assert calls_on_disk() == whole


def test_a_budget_for_less_than_three_proposals_is_refused_with_the_number() -> None:
    [run] = Experiment(config(budget=40)).run().runs
    assert run.status == "failed"
    assert "Use 50 or more" in (run.error or "")


def test_rows_without_an_answer_are_refused() -> None:
    broken = config(budget=150)
    assert broken.run is not None
    assert broken.run.data is not None
    data = broken.run.data.model_copy(update={"rows": [{"inputs": {"q": "x"}}] * 4})
    [run] = Experiment(broken.model_copy(update={"run": broken.run.model_copy(update={"data": data})})).run().runs
    assert "row 1 has no expected answer" in (run.error or "")


def test_the_runs_own_model_is_scored_with_the_tuned_prompt() -> None:
    """Beside an arm that trains weights: both are arms of one experiment, scored on the same tasks."""
    verifier = {"kind": "in_process", "fn_name": "format_only", "params": {"pattern": ".*"}}
    tasks = [{"task_id": f"t{n}", "instruction": f"say {n}", "verifier": verifier} for n in range(6)]
    rows = [{**task, "task_id": f"r{n}"} for n, task in enumerate(tasks)]
    Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
    params = {"reflection": {"kind": "mentor"}, "budget": 100, "max_tokens": 4, "patience": 1}
    base = {"model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    chat = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 4
    runs = [
        {
            **base,
            "name": "prompt",
            "data": {"source_kind": "in_memory", "rows": rows},
            "algorithm": {"kind": "gepa_prompt", "params": params},
        },
        {**base, "name": "sft", "data": {"source_kind": "in_memory", "rows": chat}, "algorithm": {"kind": "sft"}},
    ]
    whole = {
        "name": "both",
        "output_dir": "outputs",
        "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
        "metadata": {"benchmark": {"name": "b", "path": "tasks.jsonl", "split": "test", "metrics": ["pass@1"]}},
        "runs": runs,
    }
    result = Experiment(ExperimentConfig.model_validate(whole)).run()
    assert [run.status for run in result.runs] == ["completed", "completed"], [run.error for run in result.runs]
    assert all("test/b/pass@1" in run.metrics for run in result.runs)
    [line] = [json.loads(line) for line in Path("outputs/both/prompt/scores.jsonl").read_text("utf-8").splitlines()]
    assert re.search(r" [0-9a-f]{12}$", line["model"])


def test_a_reflecting_model_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, **_: Any) -> str:
        raise RuntimeError("the key is wrong")

    monkeypatch.setattr(Mentor, "generate", refuse)
    [run] = Experiment(config(budget=150)).run().runs
    assert run.status == "failed"
    assert "the key is wrong" in (run.error or "")


def test_it_is_refused_together_with_run_eval() -> None:
    fields = config(budget=150).model_dump()
    chat = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    held_out = {"source_kind": "in_memory", "rows": chat}
    fields["run"]["eval"] = {"metrics": [{"kind": "exact_match"}], "eval_data": held_out}
    [run] = Experiment(ExperimentConfig.model_validate(fields)).run().runs
    assert "remove run.eval" in (run.error or "")


TUNE: dict[str, Any] = {
    "kind": "gepa_prompt",
    "params": {"reflection": {"kind": "mentor"}, "task": {"kind": "pupil"}, "seed_prompt": "Go", "budget": 150},
}


def test_it_is_no_stage_of_a_combo_or_a_continual_run() -> None:
    from evsys_sdk.algorithms.stages import stage_algorithm
    from evsys_sdk.errors import ConfigError

    with pytest.raises(ConfigError, match="cannot be a stage"):
        stage_algorithm("gepa_prompt", TUNE["params"], path="x")


def test_a_plan_says_what_a_search_may_take() -> None:
    [run] = plan_experiment(config(budget=150)).runs
    assert (run.each.steps, run.each.tokens_sampled) == (0, 0), "another model answers"
    [note] = [note for note in run.notes if "prompt" in note]
    assert "at most 150 answers; mentor writes at most 23 prompts" in note
    assert "pupil at most 150 answers of at most 256" in note
    Experiment(config(budget=150)).run()
    assert Mentor.calls <= 23
    own = plan_experiment(config(budget=150, task=None, max_tokens=10)).runs[0]
    assert own.each.tokens_sampled == 1500
    with pytest.raises(ConfigError, match="Use 50 or more"):
        plan_experiment(config(budget=40))
