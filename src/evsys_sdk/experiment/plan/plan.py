"""What an experiment would take, before anything is spent: arms, steps, tokens, money, time; and if a budget lasts.

plan = plan_experiment(load_yaml("config.yaml"))
plan.total.tokens, plan.total.usd, plan.budget["tokens"].lasts
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ...config import Budget, ExperimentConfig, RunConfig
from ...config.prices import Tariff, TokenUsage, backend_of, price_of
from ...errors import ConfigError
from ...paths import in_project
from ...spend.ledger import LIMITED
from ..arms.arm import expand_arms
from ..arms.overrides import with_steps
from ..contamination import find_contamination
from ..experiment import Experiment
from .estimate import RunEstimate, estimate_run, size_of_work
from .sensitivity import Sensitivity, expect_sensitivity
from .speed import Speed, measure_speed, read_speed


@dataclass(frozen=True, slots=True)
class RunNeeds:
    """What a run, or everything, takes; None is not known."""

    steps: int | None = 0
    tokens_trained: int = 0
    tokens_sampled: int = 0
    """As expected."""
    most_sampled: int = 0
    """With every answer as long as it may be; `tokens` and `usd` are for this."""
    usd: float | None = 0.0
    wall_s: float | None = 0.0
    """For what is expected to be sampled."""
    gpu_s: float | None = 0.0

    @property
    def tokens(self) -> int:
        """At most."""
        return self.tokens_trained + self.most_sampled

    def __add__(self, other: RunNeeds) -> RunNeeds:
        return RunNeeds(
            _sum(self.steps, other.steps),
            self.tokens_trained + other.tokens_trained,
            self.tokens_sampled + other.tokens_sampled,
            self.most_sampled + other.most_sampled,
            _sum(self.usd, other.usd),
            _sum(self.wall_s, other.wall_s),
            _sum(self.gpu_s, other.gpu_s),
        )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: what each of its arms takes."""

    run: str
    algorithm: str
    backend: str
    model: str
    arms: tuple[str, ...]
    each: RunNeeds
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """Whether one limit lasts."""

    limit: float
    needed: float | None
    """At most; None where it is not known."""
    ends_at: str | None = None
    """The arm in which it would be reached."""

    @property
    def lasts(self) -> bool | None:
        """None where it is not known."""
        return None if self.needed is None else self.needed <= self.limit


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """The estimate of an experiment, by run and in total."""

    name: str
    runs: tuple[RunPlan, ...]
    total: RunNeeds
    budget: dict[str, LimitPlan] = field(default_factory=dict[str, LimitPlan])
    """By name of the limit; limits of a single arm are `per_arm.<limit>`."""
    assumptions: tuple[str, ...] = ()
    """The sources of the numbers, as sentences."""
    sensitivity: Sensitivity | None = None
    """The detectable effects; None without a claim or a benchmark."""

    @property
    def n_arms(self) -> int:
        return sum(len(run.arms) for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed by `evsys plan --json`."""
        fields = asdict(self)
        fields |= {"n_arms": self.n_arms, "total": {**asdict(self.total), "tokens": self.total.tokens}}
        fields["budget"] = {name: {**asdict(limit), "lasts": limit.lasts} for name, limit in self.budget.items()}
        return fields


def plan_experiment(config: ExperimentConfig, *, checked: bool = False) -> ExperimentPlan:
    """Estimate an experiment; raises all problems of the config, unless it was `checked`."""
    Experiment(config, checked=checked).validate()
    config = config.expanded()
    assumptions: dict[str, None] = {}
    estimates: dict[str, tuple[RunEstimate, Speed | None]] = {}
    arms = expand_arms(config)
    runs: list[RunPlan] = []
    for run in config.all_runs():
        size = size_of_work(run)  # equal for most runs of a sweep
        if size not in estimates:
            estimates[size] = _estimate(run, config)
        estimate, speed = estimates[size]
        time_source = (
            speed.description
            if speed
            else "time is not known: no earlier run of this model on this backend is on record"
        )
        assumptions |= dict.fromkeys([estimate.tokenizer, time_source])
        needs = _needs(run, estimate, speed, config.budget or Budget())
        names = tuple(arm.run.name for arm in arms if arm.of_run == run.name)
        runs.append(
            RunPlan(run.name, run.algorithm.kind, backend_of(run), run.model.name, names, needs, (*estimate.notes,))
        )
    per_arm = [(name, plan.each) for plan in runs for name in plan.arms]
    total = sum((needs for _, needs in per_arm), RunNeeds())
    assumptions |= dict.fromkeys([*_caveats(config), *find_contamination(config)[0]])
    sensitivity = expect_sensitivity(config)
    if sensitivity is not None and sensitivity.basis:
        assumptions |= {sensitivity.basis: None}
    limits = _limits(config.budget, per_arm)
    return ExperimentPlan(config.name, tuple(runs), total, limits, tuple(assumptions), sensitivity)


def _caveats(config: ExperimentConfig) -> list[str]:
    """The reasons why the experiment may take more or less than the sum of its arms."""
    together = config.max_concurrent_arms or 1
    caveats = [f"time is the sum over the arms, of which {together} may run at once"] if together > 1 else []
    if config.planned_looks:
        caveats.append("this counts all seeds; the experiment ends as soon as the claim is decided")
    return caveats


def _estimate(run: RunConfig, config: ExperimentConfig) -> tuple[RunEstimate, Speed | None]:
    estimate = estimate_run(run, config)
    each = estimate.tokens_trained / estimate.steps if estimate.steps else None
    lengths = [round(length * estimate.per_mock_token) for length in estimate.step_lengths]
    recorded = read_speed(run, in_project(config.output_dir), step_tokens=each)
    return estimate, recorded or measure_speed(run, lengths)


def forecast_scoring(config: ExperimentConfig) -> float | None:
    """Seconds to score one trained run, for the slowest of the runs; None if no speed is known."""
    entries = [entry.model_copy(update={"run_every": None, "models": []}) for entry in config.metadata.benchmark]
    metadata = config.metadata.model_copy(update={"benchmark": entries})
    once = config.model_copy(update={"metadata": metadata})
    with suppress(ConfigError):
        once = with_steps(once, 1)  # without evaluations during training
    seconds: list[float] = []
    for run in {size_of_work(run): run for run in once.all_runs()}.values():
        estimate, speed = _estimate(run, once)
        if speed is not None:
            seconds.append(speed.seconds(sampled=estimate.tokens_sampled - estimate.sampled_in_training))
    return max(seconds, default=None)


def _needs(run: RunConfig, estimate: RunEstimate, speed: Speed | None, budget: Budget) -> RunNeeds:
    seconds = None
    if speed is not None and estimate.steps:
        # A step that was timed as a whole contains the rollouts it was made of.
        sampled = estimate.tokens_sampled - (estimate.sampled_in_training if speed.whole_steps else 0)
        seconds = speed.seconds(trained=estimate.tokens_trained, sampled=sampled)
    return RunNeeds(
        steps=estimate.steps,
        tokens_trained=estimate.tokens_trained,
        tokens_sampled=estimate.tokens_sampled,
        most_sampled=estimate.most_sampled,
        usd=_usd(estimate, price_of(run, budget), seconds),
        wall_s=seconds,
        gpu_s=seconds if backend_of(run) == "local" else 0.0,
    )


def _usd(estimate: RunEstimate, price: Tariff | None, seconds: float | None) -> float | None:
    if price is not None and not price.tiers:
        return 0.0
    if price is None or estimate.steps is None or (price.gpu_hour and seconds is None):
        return None
    tokens = price.of(TokenUsage(0, estimate.most_sampled, trained_tokens=estimate.tokens_trained))
    return None if tokens is None else float(tokens) + (seconds or 0.0) / 3600 * price.gpu_hour


def _limits(budget: Budget | None, arms: Sequence[tuple[str, RunNeeds]]) -> dict[str, LimitPlan]:
    """How far each limit reaches, with the arms trained in their order."""
    if budget is None:
        return {}
    plans: dict[str, LimitPlan] = {}
    for name in LIMITED:
        if (limit := getattr(budget, name)) is not None:
            plans[name] = _check_limit(limit, [(arm, getattr(needs, name)) for arm, needs in arms])
        if budget.per_arm is not None and (per_arm := getattr(budget.per_arm, name)) is not None:
            amounts = [(arm, getattr(needs, name)) for arm, needs in arms]
            most = None if any(used is None for _, used in amounts) else max((used for _, used in amounts), default=0)
            over = next((arm for arm, used in amounts if used is not None and used > per_arm), None)
            plans[f"per_arm.{name}"] = LimitPlan(per_arm, most, over)
    return plans


def _check_limit(limit: float, amounts: Sequence[tuple[str, float | None]]) -> LimitPlan:
    used: float | None = 0.0
    ends_at: str | None = None
    for arm, more in amounts:
        used = _sum(used, more)
        if ends_at is None and used is not None and used > limit:
            ends_at = arm
    return LimitPlan(limit, used, ends_at)


def _sum[N: (int, float)](one: N | None, other: N | None) -> N | None:
    return None if one is None or other is None else one + other
