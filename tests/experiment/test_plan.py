"""The estimate of an experiment agrees with what running it takes, and says what it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, ExperimentConfig
from evsys_sdk.config import BenchmarkEntry
from evsys_sdk.experiment.arms.arm import expand_arms
from evsys_sdk.experiment.benchmark_plan import load_entry
from evsys_sdk.experiment.plan.estimate import estimate_run, token_scale
from evsys_sdk.experiment.plan.plan import plan_experiment
from evsys_sdk.experiment.plan.speed import read_speed
from evsys_sdk.experiment.runner import ArmOptions, run_arm
from evsys_sdk.registry import register_algorithm
from evsys_sdk.spend.ledger import open_ledger
from evsys_sdk.spend.meter import BudgetMeter

type Config = Callable[..., ExperimentConfig]

TASKS = [
    {
        "task_id": f"t{n}",
        "instruction": f"say {word}",
        "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": word},
    }
    for n, word in enumerate(("ash", "bay", "elm", "fir"))
]


def trained_tokens(config: ExperimentConfig, tmp_path: Path) -> int:
    """What a run really trains on, by the metrics of its steps."""
    [arm] = expand_arms(config)
    meter = BudgetMeter(open_ledger(tmp_path / "ledger"), arm=arm.run.name)
    result = run_arm(arm, config, ArmOptions(tmp_path / "run", callbacks=[lambda: meter]))
    assert result.status == "completed", result.error
    return meter.ledger.total().tokens_trained


@pytest.mark.parametrize(
    "params",
    [
        {"max_steps": None, "num_epochs": 3, "batch_size": 4},
        {"max_steps": 12, "batch_size": 6},
        {"max_steps": None, "num_epochs": 1, "batch_size": 64},
    ],
)
def test_steps_and_tokens_are_those_of_the_run(config: Config, tmp_path: Path, params: dict[str, Any]) -> None:
    experiment = config(params=params)
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert estimate.tokens_trained == trained_tokens(experiment, tmp_path)
    assert estimate.steps == (6 if params.get("num_epochs") == 3 else params["max_steps"] or 1)


def test_a_combo_is_the_sum_of_its_phases(config: Config, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 3
    phases = [
        {"kind": "sft", "params": {"num_epochs": 2, "batch_size": 3}},
        {"kind": "dpo", "params": {"batch_size": 3}, "data": {"source_kind": "in_memory", "rows": pairs}},
    ]
    experiment = config(run={"algorithm": {"kind": "combo", "params": {"phases": phases}}})
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert estimate.steps == 5
    assert estimate.tokens_trained == trained_tokens(experiment, tmp_path)


def test_continual_stages_are_added_up_with_their_own_params(config: Config, rows: list[dict[str, Any]]) -> None:
    data = {"source_kind": "in_memory", "rows": rows}
    stages = [{"name": "one", "data": data}, {"name": "two", "data": data, "params": {"max_steps": 4}}]
    experiment = config(run={"data": None, "continual": {"stages": stages}})
    assert estimate_run(experiment.all_runs()[0], experiment).steps == 10


def test_samples_are_counted_as_long_as_they_may_be(config: Config) -> None:
    params = {"max_steps": 5, "batch_size": 2, "group_size": 3, "sampling": {"max_tokens": 7}}
    run = {"data": {"source_kind": "in_memory", "rows": TASKS}, "algorithm": {"kind": "rl", "params": params}}
    experiment = config(run=run)
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert (estimate.steps, estimate.most_sampled) == (5, 5 * 2 * 3 * 7)
    assert estimate.tokens_trained > estimate.most_sampled  # prompts are trained through, too


def test_updates_on_the_same_rollouts_are_not_sampled_again(config: Config) -> None:
    params = {"batch_size": 2, "group_size": 2, "updates_per_batch": 2, "loss_fn": "ppo", "sampling": {"max_tokens": 4}}
    run = {"data": {"source_kind": "in_memory", "rows": TASKS}, "algorithm": {"kind": "rl", "params": params}}
    experiment = config(run=run)
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert (estimate.steps, estimate.most_sampled) == (4, 2 * 2 * 2 * 4)


def test_evaluations_are_expected_to_be_as_long_as_the_right_answers(
    config: Config, rows: list[dict[str, Any]]
) -> None:
    held_out = {"source_kind": "in_memory", "rows": rows}
    experiment = config(run={"eval": {"metrics": [{"kind": "exact_match"}], "eval_data": held_out}})
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert estimate.most_sampled == len(rows) * 256
    assert len(rows) * 4 < estimate.tokens_sampled < len(rows) * 8


def test_benchmarks_and_baselines_are_counted(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(task) for task in TASKS), encoding="utf-8")
    entry = {"path": str(path), "split": "val", "run_every": 2, "models": ["base"], "max_tokens": 10, "samples": 3}
    experiment = config(metadata={"benchmark": entry})
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert estimate.most_sampled == 4 * 3 * 10 * (2 + 1 + 1)  # after steps 2 and 4, at the end, and the base model


class TestSensitivity:
    def planned(self, config: Config, tmp_path: Path, n_tasks: int = 100, **changes: Any) -> Any:
        path = tmp_path / "tasks.jsonl"
        tasks = [{**TASKS[0], "task_id": f"t{n}"} for n in range(n_tasks)]
        path.write_text("\n".join(json.dumps(task) for task in tasks), encoding="utf-8")
        claim = {"claim": "x", "metric": "pass@1", "baseline": "r0", **changes.pop("claim", {})}
        about = {"hypothesis": claim, "benchmark": {"path": str(path), "split": "test", "samples": 4}}
        runs = [{"name": f"r{number}"} for number in range(7)]
        return plan_experiment(config(**{"metadata": about, "runs": runs, "n_repeats": 3, **changes})).sensitivity

    def test_the_rule_and_the_smallest_effect_are_known_beforehand(self, config: Config, tmp_path: Path) -> None:
        plan = self.planned(config, tmp_path)
        assert plan.rule.startswith("Supported if, on pass@1, the interval of any run's difference")
        assert (plan.seeds, plan.candidates, plan.tasks, plan.samples) == (3, 6, 100, 4)
        assert 0.08 < plan.detectable < 0.16

    def test_the_cost_of_the_claimed_effect_is_known(self, config: Config, tmp_path: Path) -> None:
        plan = self.planned(config, tmp_path, claim={"min_effect": 0.06}, n_repeats=6)
        assert plan.claimed == 0.06
        assert plan.seeds_needed > 6

    def test_more_tasks_see_more(self, config: Config, tmp_path: Path) -> None:
        few, many = (self.planned(config, tmp_path, n_tasks=count) for count in (20, 400))
        assert many.detectable < few.detectable

    def test_the_noise_of_an_earlier_experiment_on_the_same_tasks_is_taken(
        self, config: Config, tmp_path: Path
    ) -> None:
        assumed = self.planned(config, tmp_path)
        assert "is assumed" in assumed.basis
        sha256 = load_entry(BenchmarkEntry(path=str(tmp_path / "tasks.jsonl"))).sha256
        [first, *_] = config().all_runs()
        model, backend = {"name": first.model.name}, {"kind": first.backend.kind}
        for name, tasks, of_model, of_backend, flags in (
            ("noisy", sha256, model, backend, []),
            ("other", "another", model, backend, []),
            ("another_model", sha256, {"name": "other"}, backend, []),
            ("another_backend", sha256, model, {"kind": "other"}, []),
            ("flagged", sha256, model, backend, ["scores: they differ"]),
            ("broken", None, model, backend, []),
        ):
            folder = Path(config().output_dir) / name
            folder.mkdir(parents=True)
            noise = {"seed_sd": 0.1 if name == "noisy" else 0.9, "difference": 0.3, "of": "all runs"}
            stored = {"report_sha256": tasks, "noise_floor": noise, "flags": flags}
            recorded = {"name": name, "runs": [{"name": "a", "model": of_model, "backend": of_backend}]}
            (folder / "conclusion.json").write_text("{" if tasks is None else json.dumps(stored), "utf-8")
            (folder / "config.json").write_text(json.dumps(recorded), "utf-8")
        plan = self.planned(config, tmp_path)
        assert plan.basis == "the noise of seeds is that of noisy, on the same tasks"
        assert plan.detectable > 1.5 * assumed.detectable

    def test_without_a_claim_there_is_nothing_to_see(self, config: Config) -> None:
        assert plan_experiment(config()).sensitivity is None

    def test_one_seed_has_a_rule_and_no_power(self, config: Config, tmp_path: Path) -> None:
        plan = self.planned(config, tmp_path, n_repeats=1)
        assert plan.rule
        assert plan.detectable is None


def test_rows_that_are_many_are_looked_at_in_part(config: Config) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n:05d}"}, {"role": "assistant", "content": "y"}]}
        for n in range(3000)
    ]
    experiment = config(
        run={"data": {"source_kind": "in_memory", "rows": rows}}, params={"max_steps": None, "batch_size": 10}
    )
    estimate = estimate_run(experiment.all_runs()[0], experiment)
    assert estimate.steps == 300
    few = config(run={"data": {"source_kind": "in_memory", "rows": rows[:9]}})  # in three full batches
    per_row = estimate_run(few.all_runs()[0], few).tokens_trained / 6 / 3
    assert estimate.tokens_trained == pytest.approx(per_row * 3000, rel=0.01)


def test_an_algorithm_with_its_own_loop_is_not_guessed_at(config: Config) -> None:
    @register_algorithm("planless")
    class Planless:
        def train(self, ctx: Any) -> Any: ...

    plan = plan_experiment(config(run={"algorithm": {"kind": "planless"}}, budget={"wall_s": 5.0}))
    [run] = plan.runs
    assert (run.each.steps, run.each.wall_s, plan.budget["wall_s"].lasts) == (None, None, None)
    assert "trains in its own way" in run.notes[0]


def test_the_plan_names_every_arm_and_adds_them_up(config: Config) -> None:
    plan = plan_experiment(config(n_repeats=3))
    [run] = plan.runs
    assert run.arms == ("r__seed42", "r__seed43", "r__seed44")
    assert plan.total.tokens_trained == 3 * run.each.tokens_trained
    assert plan.total.usd == 0.0
    assert plan.total.wall_s is not None
    assert plan.total.wall_s > 0


@pytest.mark.parametrize(
    ("arms", "ends_at"), [(0.5, "a"), (1.0, "b"), (1.5, "b"), (2.9, "c"), (3.0, None), (9.0, None)]
)
def test_it_says_in_which_arm_a_budget_would_end(config: Config, arms: float, ends_at: str | None) -> None:
    runs = [{"name": name} for name in ("a", "b", "c")]
    each = plan_experiment(config(runs=runs)).runs[0].each.tokens
    limit = plan_experiment(config(runs=runs, budget={"tokens": int(each * arms)})).budget["tokens"]
    assert (limit.ends_at, limit.lasts) == (ends_at, ends_at is None)


def test_a_limit_per_arm_is_compared_with_the_largest_arm(config: Config) -> None:
    algorithm = {"kind": "sft", "params": {"max_steps": 60, "batch_size": 3}}
    runs = [{"name": "small"}, {"name": "large", "algorithm": algorithm}]
    plan = plan_experiment(config(runs=runs))
    small, large = (run.each.tokens for run in plan.runs)
    limit = plan_experiment(config(runs=runs, budget={"per_arm": {"tokens": small}})).budget["per_arm.tokens"]
    assert (limit.ends_at, limit.needed, limit.lasts) == ("large", large, False)


def test_money_follows_from_the_prices_of_the_config(config: Config) -> None:
    prices = {"mock": {"train_per_million": 1e6, "sample_per_million": 2e6}}
    plan = plan_experiment(config(budget={"usd": 1.0, "prices": prices}))
    assert plan.total.usd == plan.total.tokens_trained + 2 * plan.total.most_sampled
    assert plan.budget["usd"].lasts is False


def test_a_budget_in_dollars_without_a_price_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.config.prices.FREE_BACKENDS", ())
    with pytest.raises(ConfigError, match=r"budget\.prices"):
        plan_experiment(config(budget={"usd": 1.0}))


def test_time_comes_from_earlier_runs_of_the_same_model(config: Config, tmp_path: Path) -> None:
    experiment = config()
    run = experiment.all_runs()[0]
    assert read_speed(run, tmp_path / "outputs") is None
    for number, model in enumerate(("tiny", "tiny", "other")):
        folder = tmp_path / "outputs" / f"e{number}" / "r"
        folder.mkdir(parents=True)
        spend = {"tokens_trained": 1000, "tokens_sampled": 500, "usd": 0.0, "wall_s": 3.0 * (number + 1), "gpu_s": 0.0}
        hparams = {"backend": {"kind": "mock"}, "model": {"name": model}}
        (folder / "run_result.json").write_text(json.dumps({"hparams": hparams, "extras": {"spend": spend}}), "utf-8")
    (tmp_path / "outputs" / "e2" / "broken").mkdir()
    (tmp_path / "outputs" / "e2" / "broken" / "run_result.json").write_text("{", "utf-8")
    speed = read_speed(run, tmp_path / "outputs")
    assert speed is not None
    assert speed.seconds(trained=2000, sampled=1000) == pytest.approx(9.0)
    assert "2 earlier runs" in plan_experiment(experiment).assumptions[1]


def test_tokens_of_another_backend_are_characters_by_four(config: Config) -> None:
    renderer: Any = None
    mock, other = token_scale("mock", "m", [], renderer), token_scale("tinker", "no/such-model", [{"a": 1}], renderer)
    assert (mock.per_mock_token, other.per_mock_token) == (1.0, 0.25)
    assert "characters / 4" in other.description


def test_bad_rows_are_reported_as_running_would(config: Config) -> None:
    with pytest.raises(ValueError, match="row 1"):
        plan_experiment(config(run={"data": {"source_kind": "in_memory", "rows": [{"nothing": 1}]}}))


def test_planning_leaves_nothing_behind(config: Config, tmp_path: Path) -> None:
    plan_experiment(config(params={"save_every": 1}))
    assert list(tmp_path.iterdir()) == []


def earlier_run(folder: Path, *, steps: int, trained: int, wall_s: float) -> None:
    folder.mkdir(parents=True)
    spend = {"tokens_trained": trained, "tokens_sampled": 0, "usd": 0.0, "wall_s": wall_s, "gpu_s": 0.0}
    hparams = {"backend": {"kind": "mock"}, "model": {"name": "tiny"}}
    result = {"hparams": hparams, "metrics": {"steps": float(steps)}, "extras": {"spend": spend}}
    (folder / "run_result.json").write_text(json.dumps(result), "utf-8")


def test_only_comparable_runs_are_evidence_of_speed(config: Config, tmp_path: Path) -> None:
    run, outputs = config().all_runs()[0], tmp_path / "outputs"
    earlier_run(outputs / "short" / "r", steps=4, trained=400, wall_s=100.0)
    assert read_speed(run, outputs, step_tokens=100) is None, "four steps are mostly start-up"
    earlier_run(outputs / "large" / "r", steps=50, trained=50_000, wall_s=1.0)
    assert read_speed(run, outputs, step_tokens=100) is None, "its steps were ten times as large"
    earlier_run(outputs / "similar" / "r", steps=50, trained=7_500, wall_s=15.0)
    speed = read_speed(run, outputs, step_tokens=100)
    assert speed is not None
    assert speed.seconds(trained=1000, sampled=0) == pytest.approx(2.0)


def test_the_steps_of_a_run_that_is_going_count_where_none_has_ended(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "e" / "r"
    (folder / "logs").mkdir(parents=True)
    (folder / "starts.jsonl").write_text('{"time": 1.0}\n', "utf-8")
    (folder / "config.json").write_text(json.dumps({"backend": {"kind": "mock"}, "model": {"name": "tiny"}}), "utf-8")
    lines = [{"step": step, "tokens": 100.0, "loss": 1.0} for step in (1, 2, 3)]
    (folder / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    timing = [
        {"step": step, "time/step_s": seconds, "time/build_s": 0.0} for step, seconds in ((1, 9.0), (2, 1.0), (3, 1.0))
    ]
    (folder / "logs" / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timing), "utf-8")
    speed = read_speed(config().all_runs()[0], tmp_path / "outputs", step_tokens=100)
    assert speed is not None
    assert speed.seconds(trained=100, sampled=0) == pytest.approx(1.0), "the first step is not counted"
    assert "1 unfinished run" in speed.description


def test_steps_and_scorings_of_an_earlier_run_count_apart(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "e" / "r"
    earlier_run(folder, steps=3, trained=300, wall_s=1000.0)
    (folder / "logs").mkdir()
    lines = [{"step": step, "tokens": 100.0} for step in (1, 2, 3)]
    (folder / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    timing = [
        {"step": step, "time/step_s": 5.0, "time/compute_s": seconds} for step, seconds in ((1, 9), (2, 1), (3, 2))
    ]
    (folder / "logs" / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timing), "utf-8")
    scored = [{"step": 2, "tokens": 50, "seconds": 99.0}, {"step": 3, "tokens": 50, "seconds": 4.0}]
    scored.append({"step": 3, "tokens": 50, "seconds": 0.001})  # read again from the journal of its answers
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scored), "utf-8")
    speed = read_speed(config().all_runs()[0], tmp_path / "outputs", step_tokens=100)
    assert speed is not None
    assert speed.seconds(trained=200) == pytest.approx(3.0), "what was computed, without the first step or any wait"
    assert speed.seconds(sampled=100) == pytest.approx(8.0), "the scoring beside which nothing was trained"
