"""Choose the family of strategies that a campaign works on next: a pure function of observations and a seed.

    decision = decide(DecisionInputs(families, budget=3600, left=3000, baseline=0.2))
    decision.action, decision.family, decision.amount, decision.reason

Every family first gets a probe. Its learning curve is then extrapolated to the horizon, the cost of one seed of the
confirmation. Thompson sampling spends the rest of the exploration budget in slices: each slice goes to the family
whose curve, drawn from its posterior, gains most at the horizon. Costs have one unit: seconds, tokens or dollars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

type FloatArray = npt.NDArray[np.float64]

PROBE, TRAIN, CONFIRM, STOP = "probe", "train", "confirm", "stop"
_LEVEL = 0.9
"""Level of the intervals of forecasts."""
_CONFIRMED_Z = 2.5
"""A family has a gain if its best score is this many standard errors above the baseline."""
_FUTILITY_THRESHOLD = 0.05
"""Exploration ends when no other family beats the best with at least this probability."""
_CURVE_ERROR = 0.01
"""Model error of a smooth curve, as a share of the scale of scores."""
_GAINS = np.concatenate([np.linspace(-0.3, 0.0, 7)[:-1], np.linspace(0.0, 1.0, 31)])
"""Gains of a curve from its start to its end, in units of the scale."""
_PACES = np.geomspace(0.05, 4.0, 10)
_DELAYS = np.array([0.0, 0.1, 0.25, 0.5])
"""Delays before a curve rises; `_PACES` are its time constants. Both in units of the horizon."""


@dataclass(frozen=True, slots=True)
class Point:
    """A score on the validation set after some cost; higher is better."""

    cost: float
    score: float
    stderr: float


@dataclass(frozen=True, slots=True)
class FamilyState:
    """The observations of one family."""

    name: str
    spent: float = 0.0
    points: Sequence[Point] = ()
    ended: bool = False
    """Whether its training is complete."""
    blocked: str = ""
    """Why it cannot continue: it failed, or waits for approval; empty if it can."""
    fruitless: int = 0
    """Number of its latest slices in a row that were too small to reach the next score."""

    @property
    def best(self) -> Point | None:
        return max(self.points, key=lambda point: point.score, default=None)


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """All inputs of a decision."""

    families: Sequence[FamilyState]
    budget: float
    """Budget of the whole campaign."""
    left: float
    baseline: Point | None = None
    """The score before training."""
    probe_share: float = 0.05
    confirm_share: float = 0.45
    seeds: int = 3
    """Number of seeds of the confirmation."""
    least: float = 0.0
    """Smallest useful amount: the cost of one scoring."""
    seed: int = 0
    confirmed: bool = False
    """Whether the confirmation is complete."""

    @property
    def horizon(self) -> float:
        """Budget of one seed of the confirmation."""
        return self.budget * self.confirm_share / self.seeds

    @property
    def explorable(self) -> float:
        """Remaining budget minus the share of the confirmation."""
        return self.left - self.budget * self.confirm_share


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted score of a family at the horizon, or at its end if it has ended, with its 90 % interval."""

    mean: float
    low: float
    high: float
    draws: FloatArray = field(default_factory=lambda: np.zeros(0), repr=False)

    def to_dict(self) -> dict[str, float]:
        return {"mean": round(self.mean, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


@dataclass(frozen=True, slots=True)
class CampaignDecision:
    """The next step of a campaign, with its reason."""

    action: str
    """probe, train, confirm or stop."""
    family: str = ""
    amount: float = 0.0
    """Budget of the step, on top of what the family has spent."""
    reason: str = ""
    forecasts: dict[str, Forecast] = field(default_factory=dict[str, Forecast])

    def to_dict(self) -> dict[str, Any]:
        fields = {"action": self.action, "family": self.family, "amount": self.amount, "reason": self.reason}
        return {**fields, "forecasts": {name: prediction.to_dict() for name, prediction in self.forecasts.items()}}


def decide(inputs: DecisionInputs) -> CampaignDecision:
    """Choose the next step of a campaign."""
    if inputs.confirmed:
        return CampaignDecision(STOP, reason="the confirmation has been made")
    slice_ = max(inputs.budget * inputs.probe_share, inputs.least)
    if (probe := _next_probe(inputs, slice_)) is not None:
        reason = f"every family gets a probe of about {inputs.probe_share:.0%} of the budget first"
        return CampaignDecision(PROBE, probe.name, min(slice_, max(inputs.explorable, inputs.least)), reason)
    scored = [family for family in inputs.families if family.points and not family.blocked]
    if not scored:
        reasons = "; ".join(f"{family.name}: {family.blocked}" for family in inputs.families if family.blocked)
        return CampaignDecision(STOP, reason=f"no family has a score{f' ({reasons})' if reasons else ''}")
    forecasts = {family.name: forecast(family, inputs) for family in scored}
    chosen = max(scored, key=lambda family: forecasts[family.name].mean)
    open_families = [
        family
        for family in scored
        if not family.ended and family.fruitless < 2 and family.spent < 0.98 * inputs.horizon
    ]
    if not open_families:
        return _confirm(inputs, chosen, "every family is explored as far as a confirmation can go", forecasts)
    if inputs.explorable < max(0.5 * slice_, inputs.least):
        return _confirm(inputs, chosen, "the share for exploring is spent", forecasts)
    chances = _chances(open_families, chosen, forecasts)
    if chosen not in open_families and max(chances) < _FUTILITY_THRESHOLD:
        return _confirm(inputs, chosen, "no other family is likely to beat it", forecasts)
    capped = {family.name for family in open_families if _is_capped(family, inputs, slice_)}
    allowed = [family for family in open_families if family.name not in capped]
    if not allowed:
        return _confirm(inputs, chosen, "no family may take more without a confirmed gain", forecasts)
    family, gain = _draw(allowed, scored, forecasts, inputs)
    target = slice_ * 2**family.fruitless
    amount = min(target, inputs.explorable, max(inputs.horizon - family.spent, inputs.least))
    return CampaignDecision(TRAIN, family.name, amount, _explain(family, gain, forecasts, capped), forecasts)


def forecast(family: FamilyState, inputs: DecisionInputs) -> Forecast:
    """Extrapolate a learning curve to the horizon with a posterior over gain, pace and delay."""
    start, scale = _start(inputs), _scale(inputs)
    costs = np.array([point.cost for point in family.points]) / inputs.horizon
    scores = (np.array([point.score for point in family.points]) - start) / scale
    errors = np.array([max(point.stderr, 1e-6) for point in family.points]) / scale
    gains, paces, delays = (axis.ravel() for axis in np.meshgrid(_GAINS, _PACES, _DELAYS, indexing="ij"))
    curves = gains[:, None] * _rise(costs[None, :], paces[:, None], delays[:, None])
    misfit = ((scores - curves) ** 2 / (errors**2 + _CURVE_ERROR**2)).sum(axis=1)
    # Prior: large gains are rarer than small ones, and losses are rare.
    prior = np.where(gains >= 0, -gains / 0.4, gains / 0.05 - 1.0)
    log_weight = prior - 0.5 * misfit
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    reach = 1.0 if not family.ended else float(costs.max(initial=0.0))
    values = gains * _rise(np.array(reach), paces, delays)
    random = np.random.default_rng([inputs.seed, len(family.points), *family.name.encode()])
    drawn = values[random.choice(len(values), 256, p=weight)] + random.normal(0, _CURVE_ERROR, 256)
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    mean = float((values * weight).sum())
    draws = start + scale * drawn
    return Forecast(start + scale * mean, start + scale * float(low), start + scale * float(high), draws)


def _rise(cost: FloatArray, pace: FloatArray, delay: FloatArray) -> FloatArray:
    """The share of its gain that a curve reaches at a cost."""
    return 1.0 - np.exp(-np.maximum(cost - delay, 0.0) / pace)


def _start(inputs: DecisionInputs) -> float:
    if inputs.baseline is not None:
        return inputs.baseline.score
    return min(family.points[0].score for family in inputs.families if family.points)


def _scale(inputs: DecisionInputs) -> float:
    """The remaining range of scores: up to 1 if all scores are between 0 and 1, else three times the observed range."""
    values = [point.score for family in inputs.families for point in family.points] + [_start(inputs)]
    if min(values) >= 0.0 and max(values) <= 1.0:
        return max(1.0 - _start(inputs), 0.05)
    return 3.0 * (max(values) - min(values)) or 1.0


def _next_probe(inputs: DecisionInputs, slice_: float) -> FamilyState | None:
    fresh = [family for family in inputs.families if not family.points and not family.blocked and not family.ended]
    if inputs.explorable < max(
        0.5 * slice_, inputs.least
    ):  # without budget, only one probe per family, until one has a score
        fresh = (
            [] if any(family.points for family in inputs.families) else [family for family in fresh if not family.spent]
        )
    return fresh[0] if fresh else None


def _is_capped(family: FamilyState, inputs: DecisionInputs, slice_: float) -> bool:
    """Whether a family without a gain has spent half of the exploration budget that was left after the probes."""
    remainder = inputs.budget * (1 - inputs.confirm_share) - slice_ * len(inputs.families)
    return family.spent - slice_ >= 0.5 * max(remainder, slice_) and not has_gain(family, inputs)


def has_gain(family: FamilyState, inputs: DecisionInputs) -> bool:
    """Whether the best score of a family is significantly above the baseline."""
    best, base = family.best, inputs.baseline
    if best is None or base is None:
        return False
    return best.score - base.score > _CONFIRMED_Z * float(np.hypot(best.stderr, base.stderr))


def _chances(families: Sequence[FamilyState], leader: FamilyState, forecasts: dict[str, Forecast]) -> list[float]:
    """The probability of each family to exceed the leader at the horizon."""
    level = forecasts[leader.name].draws
    return [float((forecasts[family.name].draws > level).mean()) for family in families]


def _draw(
    allowed: Sequence[FamilyState],
    scored: Sequence[FamilyState],
    forecasts: dict[str, Forecast],
    inputs: DecisionInputs,
) -> tuple[FamilyState, float]:
    """Thompson sampling: draw one curve per family, and return the family with the highest gain."""
    random = np.random.default_rng([inputs.seed, sum(len(family.points) for family in scored)])
    at = int(random.integers(256))
    settled = [family for family in scored if family not in allowed]
    best = max([forecasts[family.name].mean for family in settled], default=_start(inputs))
    gains = {family.name: float(forecasts[family.name].draws[at]) - best for family in allowed}
    chosen = max(allowed, key=lambda family: gains[family.name])
    return chosen, gains[chosen.name]


def _confirm(
    inputs: DecisionInputs, chosen: FamilyState, cause: str, forecasts: dict[str, Forecast]
) -> CampaignDecision:
    best = forecasts[chosen.name]
    reason = f"{cause}; {chosen.name} has the best forecast, {best.mean:.3g} ({best.low:.3g} to {best.high:.3g})"
    return CampaignDecision(CONFIRM, chosen.name, max(inputs.left, 0.0), reason, forecasts)


def _explain(family: FamilyState, gain: float, forecasts: dict[str, Forecast], capped: set[str]) -> str:
    prediction = forecasts[family.name]
    others = [f"{name} {other.mean:.3g}" for name, other in forecasts.items() if name != family.name]
    interval = f"({prediction.low:.3g} to {prediction.high:.3g})"
    reason = f"drew a gain of {gain:+.3g} from its forecast of {prediction.mean:.3g} {interval}"
    reason += f"; others: {', '.join(others)}" if others else ""
    return reason + (f"; without a confirmed gain, not more for: {', '.join(sorted(capped))}" if capped else "")
