"""A budget stops an arm after the step that reaches it, with a checkpoint, and everything that was spent on record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, RunResult, register_verifier_fn
from evsys_sdk.backends.client import SamplingClient, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.config.checks.deep import price_problems
from evsys_sdk.config.experiment import Budget, Limits
from evsys_sdk.config.prices import Price, Tariff, TokenUsage, price_of
from evsys_sdk.experiment.arms.arm import Arm, expand_arms
from evsys_sdk.experiment.runner import ArmOptions, run_arm
from evsys_sdk.record.ledger import Spend
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.registry import REGISTRIES
from evsys_sdk.spend.ledger import SpendLedger, find_exhausted, is_budget_stop, open_ledger
from evsys_sdk.spend.meter import BudgetMeter, gpus_held, meter_for
from evsys_sdk.spend.metered_client import MeteredClient
from evsys_sdk.training.callback import EvalRecord, RunControl, RunInfo

type Config = Callable[..., ExperimentConfig]

TASKS: list[dict[str, Any]] = [
    {
        "task_id": f"t{n}",
        "instruction": f"say {word}",
        "verifier": {"kind": "in_process", "fn_name": "length_parity", "expected": word},
    }
    for n, word in enumerate(("ash", "bay", "elm", "fir"))
]


@pytest.fixture(autouse=True)
def length_parity() -> None:
    """A reward that differs between the samples of a model that has learned nothing, so that RL has work to do."""
    register_verifier_fn("length_parity")(lambda output, expected, params: float(sum(output.encode()) % 2))


class Watched:
    """Trains arms that are metered through their client, as the runner does it."""

    def __init__(self, folder: Path) -> None:
        self.ledger = open_ledger(folder)
        self.meters: list[BudgetMeter] = []

    def run(self, config: ExperimentConfig, *, resume: bool = False) -> list[RunResult]:
        return [self._run(arm, config, resume=resume) for arm in expand_arms(config)]

    def _run(self, arm: Arm, config: ExperimentConfig, *, resume: bool) -> RunResult:
        def make() -> BudgetMeter:
            self.meters.append(meter_for(self.ledger, arm.run, config))
            return self.meters[-1]

        options = ArmOptions(run_dir_of(config, arm.run.name), resume=resume, callbacks=[make], control=RunControl())
        return run_arm(arm, config, options)


def run_dir_of(config: ExperimentConfig, arm: str = "r") -> Path:
    return Path(config.output_dir) / config.name / arm


@pytest.fixture
def watched(tmp_path: Path) -> Generator[Watched]:
    watched = Watched(tmp_path / "ledger")

    class MeteredMock(MockBackend):
        def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
            handles = super().prepare(model=model, run_dir=run_dir)
            return {**handles, "training_client": watched.meters[-1].watch(handles["training_client"])}

    with REGISTRIES["backend"].isolated() as backends:
        backends.register("metered_mock")(MeteredMock)
        yield watched


def metered(config: Config, **more: Any) -> ExperimentConfig:
    """Every step sees all rows, so that all steps are of the same size."""
    run = {"backend": {"kind": "metered_mock"}, **more.pop("run", {})}
    return config(run=run, params={"batch_size": 6, **more.pop("params", {})}, **more)


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


PRICED = {"metered_mock": {"train_per_million": 1000.0, "sample_per_million": 4000.0}}


def steps_of(result: RunResult) -> int:
    return int(result.metrics["steps"])


@pytest.mark.parametrize("limit_in_steps", [0.5, 1.0, 1.5, 2.0, 3.2, 5.0])
def test_it_overruns_by_less_than_one_step(
    config: Config, tmp_path: Path, watched: Watched, limit_in_steps: float
) -> None:
    step = trained_per_step(config, watched)
    limit = int(step * limit_in_steps)
    watched.ledger = open_ledger(tmp_path / "second")
    limited = metered(config, name="limited", budget={"tokens": limit})
    [run] = watched.run(limited)
    spent = watched.ledger.total().tokens
    assert limit <= spent < limit + step
    assert run.status == "cancelled"
    assert is_budget_stop(run.error)
    assert run.error == f"budget: tokens {spent:,} of {limit:,}"
    last = CheckpointLog.in_dir(run_dir_of(limited)).last()
    assert last is not None
    assert last.next_step * step == spent  # what was paid for is in the checkpoint


def trained_per_step(config: Config, watched: Watched) -> int:
    watched.run(metered(config, name="measure"))
    return watched.ledger.total().tokens_trained // 6


def test_a_higher_limit_continues_where_the_lower_one_stopped(config: Config, tmp_path: Path, watched: Watched) -> None:
    step = trained_per_step(config, watched)
    watched.ledger = open_ledger(tmp_path / "second")
    low = metered(config, name="limited", budget={"tokens": 2 * step})
    [stopped] = watched.run(low)
    assert steps_of(stopped) == 2
    before = watched.ledger.total()
    watched.ledger = SpendLedger(watched.ledger.path)  # another process
    [again] = watched.run(metered(config, name="limited", budget={"tokens": 4 * step}), resume=True)
    assert (steps_of(again), again.status) == (4, "cancelled")
    assert watched.ledger.total().tokens == before.tokens + 2 * step
    [end] = watched.run(metered(config, name="limited", budget={"tokens": 10**9}), resume=True)
    assert (steps_of(end), end.status) == (6, "completed")


def test_a_limit_of_one_arm_leaves_the_others_alone(config: Config, tmp_path: Path, watched: Watched) -> None:
    step = trained_per_step(config, watched)
    watched.ledger = open_ledger(tmp_path / "second")
    result = watched.run(metered(config, runs=named("a", "b"), budget={"per_arm": {"tokens": 3 * step}}))
    assert [steps_of(run) for run in result] == [3, 3]
    assert [run.error for run in result] == [f"budget: this arm has used tokens {3 * step:,} of {3 * step:,}"] * 2
    assert (watched.ledger.of("a").tokens, watched.ledger.total().tokens) == (3 * step, 6 * step)


def test_a_limit_of_the_experiment_counts_all_arms(config: Config, tmp_path: Path, watched: Watched) -> None:
    step = trained_per_step(config, watched)
    watched.ledger = open_ledger(tmp_path / "second")
    result = watched.run(metered(config, runs=named("a", "b", "c"), budget={"tokens": 8 * step}))
    assert [int(run.metrics.get("steps", 0)) for run in result] == [6, 2, 0]
    assert [run.status for run in result] == ["completed", "cancelled", "cancelled"]
    assert watched.ledger.total().tokens == 8 * step


def test_money_is_counted_by_the_price_table(config: Config, watched: Watched) -> None:
    watched.run(metered(config, budget={"usd": 1000.0, "prices": PRICED}))
    spent = watched.ledger.total()
    assert spent.usd == pytest.approx(spent.tokens_trained * 1e-3 + spent.tokens_sampled * 4e-3)
    assert spent.usd > 0
    assert not spent.unpriced


def test_a_limit_in_dollars_stops(config: Config, tmp_path: Path, watched: Watched) -> None:
    step = trained_per_step(config, watched)
    watched.ledger = open_ledger(tmp_path / "second")
    budget = {"usd": 2.5 * step / 1000, "prices": PRICED}
    [run] = watched.run(metered(config, name="limited", budget=budget))
    assert steps_of(run) == 3
    assert run.error.startswith("budget: usd ") if run.error else False


def test_a_limit_in_seconds_ends_the_run_early_enough_to_score_it(
    config: Config, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def on_step(meter: BudgetMeter, step: int, metrics: Any) -> None:
        now[0] += 10.0  # every step takes ten seconds
        real(meter, step, metrics)

    real = BudgetMeter.on_step
    monkeypatch.setattr(BudgetMeter, "on_step", on_step)
    monkeypatch.setattr("evsys_sdk.spend.meter.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("evsys_sdk.spend.ledger.time", SimpleNamespace(time=lambda: now[0]))
    [run] = watched.run(metered(config, params={"max_steps": 500}, budget={"wall_s": 25.0}))
    assert steps_of(run) == 2  # the second was in flight, and a third would take the time for scoring
    assert (run.status, run.notes.stop_reason) == ("completed", "budget: deadline, 15 s of wall_s 25 left to score")
    assert watched.ledger.total().wall_s == 20.0


def test_evaluations_and_baselines_are_counted(
    config: Config, watched: Watched, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    watched.run(metered(config))
    trained = watched.ledger.total()
    assert trained.tokens_sampled == 0
    watched.ledger = open_ledger(tmp_path / "second")
    scored = {"eval": {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}}
    watched.run(metered(config, name="scored", run=scored))
    evaluated = watched.ledger.total()
    assert evaluated.tokens_trained == trained.tokens_trained
    assert evaluated.tokens_sampled > 0


def test_rollouts_are_counted_as_sampled(config: Config, watched: Watched) -> None:
    changes = {
        "data": {"source_kind": "in_memory", "rows": TASKS},
        "algorithm": {
            "kind": "rl",
            "params": {"max_steps": 2, "batch_size": 2, "group_size": 2, "sampling": {"max_tokens": 5}},
        },
    }
    watched.run(metered(config, run=changes))  # whether anything was learned from them or not
    assert 8 <= watched.ledger.total().tokens_sampled <= 40


def test_without_a_watched_client_the_metrics_of_the_steps_count(config: Config, tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger")
    meter = BudgetMeter(ledger, arm="r", experiment_budget=Budget(tokens=1), price=Tariff())
    [arm] = expand_arms(config())
    run = run_arm(arm, config(), ArmOptions(tmp_path / "run", callbacks=[lambda: meter]))
    assert (run.status, steps_of(run)) == ("cancelled", 2)  # one more step was in flight
    assert ledger.total().tokens_trained > 0


def test_a_budget_that_cannot_be_watched_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(tmp_path)
    meter = BudgetMeter(ledger, arm="r", experiment_budget=Budget(tokens=100))
    control = RunControl()

    def broken() -> Spend:
        raise ValueError("damaged")

    monkeypatch.setattr(ledger, "total", broken)
    meter.on_run_start(RunInfo("e", "r", tmp_path, {}), control)
    assert control.stop_reason == "budget: it cannot be checked: ValueError: damaged"


def test_what_verifiers_report_themselves_is_paid_once_for_the_same_scoring(tmp_path: Path) -> None:
    meter = BudgetMeter(open_ledger(tmp_path), arm="r", price=Tariff())
    record = EvalRecord("b", "val", 5, {"pass@1": 1.0}, [{"info": {"cost_usd": 0.25}}, {"info": {}}, {}])
    meter.on_eval(record)
    meter.on_eval(record)
    metered = {"info": {"cost_usd": 9.0, "usage": {"output_tokens": 5}}}  # by a client that the meter heard of itself
    meter.on_eval(EvalRecord("b", "val", 7, {}, [metered]))
    assert meter.ledger.total().usd == 0.25
    meter.on_eval(EvalRecord("b", "val", 6, {}, [{"info": {"cost_usd": None}}]))
    assert meter.ledger.total().unpriced


@pytest.mark.parametrize("kind", ["rl", "sdft"])
def test_recipes_that_sample_report_as_much_as_their_client_counts(
    config: Config, watched: Watched, rows: list[dict[str, Any]], kind: str, tmp_path: Path, uneven: str
) -> None:
    params = {"max_steps": 3, "batch_size": 2, "sampling": {"max_tokens": 6}}
    tasks = [{**task, "verifier": {**task["verifier"], "fn_name": uneven}} for task in TASKS]
    data = {"source_kind": "in_memory", "rows": tasks if kind == "rl" else rows}
    experiment = metered(config, run={"data": data, "algorithm": {"kind": kind, "params": params}})
    [run] = watched.run(experiment)
    assert run.status == "completed", run.error
    unwatched = BudgetMeter(open_ledger(tmp_path / "second"), arm="r")
    plain = config(run={"data": data, "algorithm": {"kind": kind, "params": params}}, name="plain")
    [arm] = expand_arms(plain)
    run_arm(arm, plain, ArmOptions(run_dir_of(plain), callbacks=[lambda: unwatched]))
    assert unwatched.ledger.total().tokens_sampled == watched.ledger.total().tokens_sampled > 0
    assert unwatched.ledger.total().tokens_trained == watched.ledger.total().tokens_trained


@pytest.mark.parametrize(
    ("backend", "price", "gpus"),
    [
        ({"kind": "mock"}, Tariff((Price(gpu_hour=1.0),)), 0.0),
        ({"kind": "local"}, Tariff(), 1.0),
        ({"kind": "local", "params": {"device": "cpu"}}, Tariff(), 0.0),
        ({"kind": "my_cluster"}, Tariff((Price(gpu_hour=2.0),)), 1.0),
        ({"kind": "tinker"}, None, 0.0),
    ],
)
def test_gpus_are_counted_where_an_arm_holds_one(
    config: Config, monkeypatch: pytest.MonkeyPatch, backend: dict[str, Any], price: Tariff | None, gpus: float
) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert gpus_held(config(run={"backend": backend}).all_runs()[0], price) == gpus


def test_gpu_time_is_counted_and_paid_for(tmp_path: Path) -> None:
    meter = BudgetMeter(
        open_ledger(tmp_path),
        arm="r",
        arm_budget=Limits(gpu_s=0.02),
        price=Tariff((Price(gpu_hour=3600.0),)),
        gpus=lambda: 2.0,
    )
    control = RunControl()
    meter.on_run_start(RunInfo("e", "r", tmp_path, {}), control)
    time.sleep(0.02)
    meter.on_step(1, {})
    spent = meter.ledger.total()
    assert spent.gpu_s == pytest.approx(2 * spent.wall_s, rel=1e-3)
    assert spent.usd == pytest.approx(spent.gpu_s)
    assert control.stop_reason is not None
    assert control.stop_reason.startswith("budget: this arm has used gpu_s ")


def test_a_run_without_limits_is_metered_and_never_stopped(config: Config, watched: Watched) -> None:
    [run] = watched.run(metered(config))
    assert run.status == "completed"
    assert watched.ledger.total().to_dict()["usd"] is None  # no one said what it costs
    assert watched.ledger.total().wall_s > 0


@pytest.mark.parametrize(
    ("limits", "spend", "reason"),
    [
        (Limits(tokens=10_000), Spend(tokens_trained=10_000, tokens_sampled=240), "tokens 10,240 of 10,000"),
        (Limits(tokens=10_000), Spend(tokens_trained=9_999), None),
        (Limits(usd=2.5), Spend(usd=2.5), "usd 2.5 of 2.5"),
        (Limits(wall_s=60.0), Spend(wall_s=61.25), None),
        (Limits(gpu_s=3600.0), Spend(gpu_s=4000.0), "gpu_s 4,000.0 of 3,600.0"),
        (Limits(), Spend(usd=1e9), None),
        (None, Spend(usd=1e9), None),
    ],
)
def test_which_limit_is_reached_is_reported_in_numbers(limits: Limits | None, spend: Spend, reason: str | None) -> None:
    assert find_exhausted(limits, spend) == reason


def test_a_limit_in_dollars_needs_a_price(config: Config) -> None:
    unknown = config(run={"backend": {"kind": "tinker"}, "model": {"name": "Qwen/Qwen3-4B"}}, budget={"usd": 5.0})
    [problem] = price_problems(unknown)
    assert problem.path == "budget.usd"
    assert "'Qwen/Qwen3-4B' on the backend 'tinker'" in problem.message
    assert "budget.prices" in problem.hint
    for key in ("Qwen/Qwen3-4B", "tinker"):
        prices = {key: {"train_per_million": 1.0}}
        assert not price_problems(
            unknown.model_copy(update={"budget": Budget.model_validate({"usd": 5.0, "prices": prices})})
        )
    assert not price_problems(config(budget={"usd": 5.0}))
    assert not price_problems(unknown.model_copy(update={"budget": Budget(tokens=5)}))


def test_a_recipe_that_pins_a_backend_is_priced_there(config: Config) -> None:
    pinned = config(run={"backend": {"kind": "tinker"}, "algorithm": {"kind": "mock_sft"}})
    assert price_of(pinned.all_runs()[0], Budget()) == Tariff()


def test_a_hosted_baseline_without_a_list_price_is_refused(config: Config) -> None:
    def problems(model: str) -> list[str]:
        entry = {"path": "tasks.jsonl", "models": ["base", model]}
        return [problem.path for problem in price_problems(config(budget={"usd": 1.0}, metadata={"benchmark": entry}))]

    assert problems("openai:gpt-4.1") == []
    assert problems("openai:gpt-99") == ["metadata.benchmark[0].models[1]"]


def test_the_price_of_a_model_wins_over_that_of_its_backend(config: Config) -> None:
    run = config().all_runs()[0]
    budget = Budget(prices={"mock": Price(gpu_hour=1.0), "tiny": Price(gpu_hour=2.0)})
    tariff = price_of(run, budget)
    assert tariff is not None
    assert tariff.gpu_hour == 2.0


def test_a_metered_client_is_a_training_client_in_every_way(tmp_path: Path) -> None:
    handles = MockBackend().prepare(model=type("M", (), {"name": "tiny"})(), run_dir=tmp_path)
    used: list[TokenUsage] = []
    client = MeteredClient(handles["training_client"], used.append)
    try:
        assert isinstance(client, TrainingClient)
        sampler = client.sampler().result()
        assert isinstance(sampler, SamplingClient)
        sampler.logprobs([1, 2, 3]).result()
        assert used == [TokenUsage(3, 0)]
        assert client.capabilities.backend == "mock"
    finally:
        client.close()
