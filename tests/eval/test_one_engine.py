"""One engine scores everything: each metric in each way, and nothing else asks a model for an answer."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import evsys_sdk
from evsys_sdk import (
    HarborTask,
    InProcessVerifier,
    VerificationResult,
    register_inference,
    register_verifier,
)
from evsys_sdk.builtins import BUILTINS
from evsys_sdk.cli.main import main
from evsys_sdk.config import DataConfig, EvalConfig, ExperimentConfig, Metadata, TransformSpec
from evsys_sdk.errors import ConfigError, EvsysAuthError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.eval.run_eval import RunEvaluator, names_another_model
from evsys_sdk.experiment.benchmark_plan import benchmark_problems, run_eval_problems
from evsys_sdk.training.callback import Observers

WORDS = ("gmail_send", "gmail_read", "slack_post")
CHAT_ROWS = [{"prompt": f"say {word}", "answer": word, "toolkit": word.split("_")[0]} for word in WORDS]
TASKS = [
    {
        "task_id": word,
        "instruction": f"say {word}",
        "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": word},
        "metadata": {"toolkit": word.split("_")[0]},
    }
    for word in WORDS
]
PRICED = frozenset({"cost_per_task", "cost_per_correct"})
METRICS = sorted(BUILTINS["metric"])


class Echo:
    """Answers with the last word of the question; its model has a price where it is asked for one."""

    name = "echo"

    def __init__(self, model: str = "m") -> None:
        self.model = model

    async def complete(self, messages: Sequence[Any], **options: Any) -> list[Any]:
        from evsys_sdk.config.prices import TokenUsage
        from evsys_sdk.inference.client import Completion

        text = str(messages[-1]["content"]).split()[-1]
        return [Completion(text, {"role": "assistant", "content": text}, "stop", TokenUsage(3, 1), cost_usd=0.25)]

    def close(self) -> None: ...


@pytest.fixture
def project(tmp_path: Path) -> Path:
    register_inference("echo")(Echo)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS), encoding="utf-8")
    rows = [{"query": row["prompt"], "tool_slug": row["answer"], "toolkit": row["toolkit"]} for row in CHAT_ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "aliases.json").write_text("{}", encoding="utf-8")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def score_run(metric: str, inference: dict[str, Any] | None = None, tmp_path: Path = Path()) -> dict[str, float]:
    """`run.eval` on an untrained mock model, or on the model that `inference` names."""
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.mock.backend import MockBackend
    from evsys_sdk.inference.renderer import get_renderer
    from evsys_sdk.training.blocking import run_blocking

    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=tmp_path)
    client = handles["training_client"]
    config = EvalConfig.model_validate(
        {
            "metrics": [{"kind": metric}],
            "inference": inference,
            "eval_data": {"source_kind": "in_memory", "rows": CHAT_ROWS},
        }
    )

    def load(data: DataConfig) -> list[dict[str, Any]]:
        return list(data.rows or [])

    evaluator = RunEvaluator(config, client, get_renderer(client.tokenizer), Observers([]), load, [])
    try:
        metrics = dict(run_blocking(lambda: evaluator(0)))
    finally:
        backend.teardown(handles)
    assert evaluator.failure is None, evaluator.failure
    return metrics


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_works_in_each_of_the_four_ways(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    scored = Benchmark.load(path="tasks.jsonl").score(Echo(), ScoreSettings(metrics=[metric]))
    assert scored.problem is None
    value = scored.metrics[metric].value

    assert (
        main(["benchmark", "run", "tasks.jsonl", "--inference", "echo", "--metrics", metric, "--json", "--quiet"]) == 0
    )
    assert metric.startswith("time_") or shown(capsys)["metrics"][metric]["value"] == value

    files = ["--dataset", "rows.jsonl", "--aliases", "aliases.json", "--output-dir", "out", "--system", ""]
    options = ["--inference-kind", "echo", "--model-name", "m", "--metrics", metric, "--json", "--quiet"]
    capsys.readouterr()
    assert main(["eval", "model", *files, *options]) == 0
    assert metric.startswith("time_") or shown(capsys)["metrics"][metric]["value"] == value

    score = score_run(metric, {"kind": "echo"})[f"eval/{metric}"]
    assert metric.startswith("time_") or score == value


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("metric", sorted({*METRICS} - PRICED - {"tokens_per_correct", "time_per_correct"}))
def test_every_metric_that_needs_no_price_scores_the_model_in_training(metric: str) -> None:
    assert f"eval/{metric}" in score_run(metric)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("metric", [*sorted(PRICED), "pass@3", "pass^2"])
def test_a_metric_that_cannot_work_is_refused_before_the_run(metric: str) -> None:
    metadata = Metadata.model_validate({"benchmark": [{"name": "b", "path": "tasks.jsonl", "metrics": [metric]}]})
    [problem] = benchmark_problems(metadata, priced=False)
    assert problem.path == "metadata.benchmark[0].metrics[0]"
    assert problem.hint
    run = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": CHAT_ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft"},
        "eval": {"metrics": [{"kind": "exact_match"}, {"kind": metric}]},
    }
    [problem] = run_eval_problems(ExperimentConfig.model_validate({"name": "e", "run": run}))
    assert problem.path == "run.eval.metrics[1]"
    assert problem.hint


@pytest.mark.usefixtures("project")
def test_a_metric_of_targets_is_refused_where_tasks_expect_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    task = {**TASKS[0], "verifier": {"kind": "in_process", "fn_name": "format_only"}}
    Path("free.jsonl").write_text(json.dumps(task) + "\n", encoding="utf-8")
    entry = {"name": "b", "path": "free.jsonl", "metrics": ["toolkit_match"]}
    [problem] = benchmark_problems(Metadata.model_validate({"benchmark": [entry]}))
    assert "expects none" in problem.message
    assert main(["benchmark", "run", "free.jsonl", "--inference", "echo", "--metrics", "toolkit_match"]) == 1
    assert "--metrics: toolkit_match compares answers with what is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("inference", "another"),
    [
        (None, False),
        ({"kind": "mock"}, False),
        ({"kind": "tinker"}, False),
        ({"kind": "local", "params": {"temperature": 0.5}}, False),
        ({"kind": "mock", "params": {"model": "other"}}, True),
        ({"kind": "local", "params": {"checkpoint": "somewhere"}}, True),
        ({"kind": "openai"}, True),
    ],
)
def test_only_a_block_that_names_a_model_means_another_one(inference: dict[str, Any] | None, another: bool) -> None:
    assert names_another_model(EvalConfig.model_validate({"inference": inference}).inference) == another


# What a result says


def of(*pairs: tuple[str, str, dict[str, Any]]) -> Benchmark:
    verifiers = [(word, InProcessVerifier("exact_match", expected=expected), data) for word, expected, data in pairs]
    return Benchmark.of(
        [HarborTask(word, f"say {word}", verifier, data) for word, verifier, data in verifiers], name="b"
    )


@pytest.mark.parametrize(("expected", "reward"), [("no", 0.0), ("yes", 1.0)])
def test_a_benchmark_that_distinguishes_nothing_reports_it(expected: str, reward: float) -> None:
    pairs = [(word, "never" if expected == "no" else word, {}) for word in ("a", "b")]
    result = of(*pairs).score(Echo())
    assert result.saturated == result.to_dict()["saturated"] == result.per_task()["saturated"] == reward
    assert f"every answer to the 2 tasks of 'b' scores {reward:g}" in str(result.note)
    assert of(("a", "a", {}), ("b", "x", {})).score(Echo()).note is None


def test_groups_of_tasks_and_every_sample_reach_the_record() -> None:
    benchmark = of(("a", "a", {"cluster": "x", "page": 1}), ("b", "no", {"page": 2}))
    assert benchmark.score(Echo()).per_task()["clusters"] == ["x", None]
    result = benchmark.score(Echo(), ScoreSettings(samples=2, cluster_by="page"))
    per_task = result.per_task()
    assert per_task["tasks"] == ["a", "b"]
    assert per_task["clusters"] == ["1", "2"]
    assert per_task["samples"] == [[1.0, 1.0], [0.0, 0.0]]
    assert (per_task["samples_expected"], per_task["samples_obtained"]) == (2, [2, 2])


def test_the_same_question_under_several_ids_is_one_group() -> None:
    rows = [("start mail", "x"), ("  Start MAIL! ", "x"), ("start mail", "y"), ("stop mail", "x")]
    tasks = [
        HarborTask(f"t{at}", question, InProcessVerifier("contains", expected))
        for at, (question, expected) in enumerate(rows)
    ]
    clusters = Benchmark.of(tasks, name="b").score(Echo()).per_task()["clusters"]
    assert clusters[0] == clusters[1] is not None
    assert clusters[2:] == [None, None]


def test_refused_credentials_end_a_scoring_at_once() -> None:
    class Refused(Echo):
        calls = 0

        async def complete(self, messages: Sequence[Any], **options: Any) -> list[Any]:
            Refused.calls += 1
            raise EvsysAuthError("no key")

    with pytest.raises(EvsysAuthError, match="no key"):
        of(*((str(at), "x", {}) for at in range(200))).score(Refused())
    assert Refused.calls <= 64


def test_an_async_verifier_with_a_reason_is_welcome() -> None:
    @register_verifier("thoughtful")
    async def thoughtful(completion: str, expected: Any) -> VerificationResult:
        return VerificationResult(0.5, {"why": f"{completion} is half of {expected}"})

    task = HarborTask("t", "say a", InProcessVerifier("thoughtful", expected="aa"))
    [prediction] = Benchmark.of([task], name="b").score(Echo()).predictions
    assert (prediction.reward, prediction.info) == (0.5, {"why": "a is half of aa"})


@pytest.mark.usefixtures("project")
def test_transforms_make_tasks_of_other_rows() -> None:
    rows = [{"question": f"say {word}", "reply": word} for word in WORDS]
    Path("raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    templates = {"user_template": "{question}", "assistant_template": "{reply}"}
    transforms = [
        TransformSpec(kind="jsonl_to_chat", params=templates),
        TransformSpec(kind="chat_to_harbor_task", params={}),
    ]
    benchmark = Benchmark.load(path="raw.jsonl", transforms=transforms)
    assert benchmark.score(Echo()).metrics["pass@1"].value == 1.0
    entry = {"name": "b", "path": "raw.jsonl", "transforms": [transform.model_dump() for transform in transforms]}
    assert benchmark_problems(Metadata.model_validate({"benchmark": [entry]})) == []


# Who may ask

SOURCE = Path(evsys_sdk.__file__).parent
ASKS = {"complete", "generate", "sample", "act"}
PROVIDERS = ("inference", "rollouts", "backends", "server", "testing")
"""Rooms that answer, or that pass questions on; what recipes sample to learn from is training, not scoring."""
ALLOWED = {
    "eval/scored_model.py": "the engine asks an inference client here",
    "eval/verifiers/llm_judge.py": "a judge is asked about an answer, not for one",
    "eval/lm_eval_model.py": "answers what another program asks, which scores the documents",
    "eval/verifiers/inspect.py": "answers what another program asks, whose solver owns the conversation",
    "deploy/inspect_provider.py": "answers in the program of another library",
    "algorithms/on_policy.py": "samples that are trained on",
    "algorithms/gepa_prompt.py": "answers that a prompt is tuned on",
    "spend/metered_client.py": "passes on and counts",
    "experiment/launchers/worker.py": "marks a job as done, and asks no model",
    "experiment/plan/speed.py": "times a sampler and reads nothing",
    "training/frozen_model.py": "answers for loops of the user's own; scores come from the engine",
    "loop/decider.py": "is asked about a decision, and scores nothing",
}


def test_nothing_but_the_engine_asks_a_model_for_an_answer() -> None:
    asking: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        if name.startswith(PROVIDERS):
            continue
        calls = [node.func for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        if any(isinstance(call, ast.Attribute) and call.attr in ASKS for call in calls):
            asking.add(name)
    assert asking == set(ALLOWED)


def test_wrong_params_of_a_client_are_a_sentence() -> None:
    from evsys_sdk.eval.scored_model import open_client

    with pytest.raises(ConfigError, match=r"params.sed: unknown key 'sed'. Did you mean 'seed'\?"):
        open_client("mock", {"sed": 1})


def test_a_client_by_itself_needs_a_model() -> None:
    from evsys_sdk.inference.clients.sampled import require_model

    assert require_model("tinker", "m") == "m"
    with pytest.raises(ConfigError, match="inference client 'tinker' needs a model"):
        require_model("tinker", None)
