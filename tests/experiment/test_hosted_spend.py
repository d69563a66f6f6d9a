"""Hosted models are in the bill and in the budget: judges, baselines, and the model that `eval.inference` asks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig
from evsys_sdk.data.jsonl import write_jsonl
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.inference.clients.openai import OpenAIClient
from evsys_sdk.record.ledger import read_tally
from evsys_sdk.registry import REGISTRIES

from ..inference import stand_in

type Config = Callable[..., ExperimentConfig]

PRICES = {"m": {"input": 1000.0, "output": 10_000.0}}
ANSWER = 1.1
"""Dollars: every one takes 1000 tokens and has 10."""
TASKS = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[stand_in.StandIn]:
    """A kind of provider, `paid`, without list prices."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = stand_in.StandIn(stand_in.openai_answer)

    class Paid(OpenAIClient):
        name = "paid"
        address = server.url
        key_variables = ()

    with REGISTRIES["inference_client"].isolated() as kinds:
        kinds.register("paid")(Paid)
        yield server
    server.close()


def answered(server: stand_in.StandIn) -> float:
    """What all answers so far cost."""
    return len(server.seen) * ANSWER


def tasks(**verifier: Any) -> list[dict[str, Any]]:
    spec = {"kind": "in_process", "fn_name": "exact_match", "expected": "ash"} | verifier
    return [{"task_id": f"t{n}", "instruction": f"say {n}", "verifier": spec} for n in range(TASKS)]


def judged() -> list[dict[str, Any]]:
    params = {"judge": {"kind": "paid", "params": {"model": "m"}}, "rubric": "is it short?", "attempts": 1}
    return tasks(fn_name="llm_judge", params=params)


def benchmark(folder: Path, rows: list[dict[str, Any]], **entry: Any) -> dict[str, Any]:
    write_jsonl(folder / "tasks.jsonl", rows)
    return {"benchmark": {"path": str(folder / "tasks.jsonl"), "split": "val", "max_tokens": 4, **entry}}


def paid(result: ExperimentResult) -> float:
    return read_tally(result.path).total().usd


def test_the_model_that_eval_inference_asks_is_paid_for(
    config: Config, rows: list[dict[str, Any]], server: stand_in.StandIn
) -> None:
    inference = {"kind": "paid", "params": {"model": "m"}}
    scored: dict[str, Any] = {"metrics": [{"kind": "exact_match"}], "inference": inference}
    scored["eval_data"] = {"source_kind": "in_memory", "rows": rows}
    result = Experiment(config(run={"eval": scored}, budget={"usd": 1000.0, "prices": PRICES})).run()
    assert result.exit_code == 0
    assert len(server.seen) == len(rows)
    spent = read_tally(result.path).total()
    assert (spent.usd, spent.tokens_sampled) == (pytest.approx(answered(server)), 10 * len(server.seen))
    noted = result.arms[0].result.notes.spend
    assert noted is not None
    assert noted["usd"] == pytest.approx(answered(server))


def test_a_hosted_baseline_is_paid_for_once_by_all_arms(
    config: Config, server: stand_in.StandIn, tmp_path: Path
) -> None:
    metadata = benchmark(tmp_path, tasks(), models=["paid:m"])
    result = Experiment(config(metadata=metadata, n_repeats=2, budget={"prices": PRICES})).run()
    assert len(server.seen) == TASKS
    assert paid(result) == pytest.approx(answered(server))


def test_a_judge_is_paid_for_in_benchmarks(config: Config, server: stand_in.StandIn, tmp_path: Path) -> None:
    server.answer = _grade
    result = Experiment(config(metadata=benchmark(tmp_path, judged()), budget={"prices": PRICES})).run()
    assert result.exit_code == 0
    assert len(server.seen) == TASKS
    assert paid(result) == pytest.approx(answered(server))


def test_a_judge_that_gives_no_score_was_paid_for_all_the_same(
    config: Config, server: stand_in.StandIn, tmp_path: Path
) -> None:
    server.answer = partial(_say, text="I would rather not say.")
    result = Experiment(config(metadata=benchmark(tmp_path, judged()), budget={"prices": PRICES})).run()
    assert result.exit_code == 2
    assert len(server.seen) >= TASKS
    assert paid(result) == pytest.approx(answered(server))


def test_a_judge_of_rollouts_is_paid_for_once(config: Config, server: stand_in.StandIn) -> None:
    server.answer = _grade
    params = {"max_steps": 2, "batch_size": 2, "group_size": 2, "sampling": {"max_tokens": 4}}
    run = {
        "data": {"source_kind": "in_memory", "rows": judged()},
        "algorithm": {"kind": "rl", "params": params},
    }
    result = Experiment(config(run=run, budget={"prices": PRICES})).run()
    assert len(server.seen) == 8
    assert paid(result) == pytest.approx(answered(server))


def test_a_budget_stops_a_run_on_what_hosted_models_cost(config: Config, server: stand_in.StandIn) -> None:
    server.answer = _grade
    params = {"max_steps": 50, "batch_size": 2, "group_size": 2, "sampling": {"max_tokens": 4}}
    run = {"data": {"source_kind": "in_memory", "rows": judged()}, "algorithm": {"kind": "rl", "params": params}}
    result = Experiment(config(run=run, budget={"usd": 10 * ANSWER, "prices": PRICES})).run()
    assert (result.status, result.exit_code) == ("budget", 3)
    assert 10 <= len(server.seen) <= 20  # four of a step, and those of the step in flight
    assert str(result.arms[0].result.error).startswith("budget: usd ")


def test_what_costs_money_per_task_uses_the_price_of_the_budget(
    config: Config, server: stand_in.StandIn, tmp_path: Path
) -> None:
    metadata = benchmark(tmp_path, tasks(), models=["paid:m", "base"], metrics=["pass@1", "cost_per_task"])
    result = Experiment(config(metadata=metadata, budget={"prices": {**PRICES, "tiny": {"output": 1e6}}})).run()
    metrics: Mapping[str, float] = result.arms[0].metrics
    costs = {name: value for name, value in metrics.items() if name.endswith("/cost_per_task")}
    assert len(costs) == 3
    hosted_cost = next(value for name, value in costs.items() if "paid:m" in name)
    assert hosted_cost == pytest.approx(answered(server) / len(server.seen))
    assert all(1 <= value <= 4 for name, value in costs.items() if "paid:m" not in name)  # a dollar for each token


def test_a_limit_in_dollars_needs_the_prices_of_hosted_models(
    config: Config, rows: list[dict[str, Any]], server: stand_in.StandIn, tmp_path: Path
) -> None:
    scored: dict[str, Any] = {
        "metrics": [{"kind": "exact_match"}],
        "inference": {"kind": "paid", "params": {"model": "m"}},
    }
    scored["eval_data"] = {"source_kind": "in_memory", "rows": rows}
    metadata = benchmark(tmp_path, tasks(), models=["paid:m"])
    with pytest.raises(ConfigError) as refusal:
        Experiment(config(run={"eval": scored}, metadata=metadata, budget={"usd": 1.0})).run()
    assert "metadata.benchmark[0].models[0]" in str(refusal.value)
    assert "run.eval.inference" in str(refusal.value)
    assert "budget.prices" in str(refusal.value)
    assert not server.seen


def _grade(request: stand_in.Seen) -> stand_in.Reply:
    return _say(request, "<score>7</score>")


def _say(request: stand_in.Seen, text: str) -> stand_in.Reply:
    reply = stand_in.openai_answer(request)
    reply.body["choices"][0]["message"]["content"] = text
    return reply
