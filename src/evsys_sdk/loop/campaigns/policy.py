"""Choose the family of strategies that a campaign works on next: a pure function of observations and a seed.

    decision = decide(Observed(families, budget=3600, left=3000, baseline=0.2))
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
        return max(self.points, key=lambda one: one.score, default=None)


@dataclass(frozen=True, slots=True)
class Observed:
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
        stated = {"action": self.action, "family": self.family, "amount": self.amount, "reason": self.reason}
        return {**stated, "forecasts": {name: one.to_dict() for name, one in self.forecasts.items()}}


def decide(seen: Observed) -> CampaignDecision:
    """Choose the next step of a campaign."""
    if seen.confirmed:
        return CampaignDecision(STOP, reason="the confirmation has been made")
    slice_ = max(seen.budget * seen.probe_share, seen.least)
    if (unseen := _next_probe(seen, slice_)) is not None:
        said = f"every family gets a probe of about {seen.probe_share:.0%} of the budget first"
        return CampaignDecision(PROBE, unseen.name, min(slice_, max(seen.explorable, seen.least)), said)
    known = [one for one in seen.families if one.points and not one.blocked]
    if not known:
        reasons = "; ".join(f"{one.name}: {one.blocked}" for one in seen.families if one.blocked)
        return CampaignDecision(STOP, reason=f"no family has a score{f' ({reasons})' if reasons else ''}")
    forecasts = {one.name: forecast(one, seen) for one in known}
    chosen = max(known, key=lambda one: forecasts[one.name].mean)
    open_ones = [one for one in known if not one.ended and one.fruitless < 2 and one.spent < 0.98 * seen.horizon]
    if not open_ones:
        return _confirm(seen, chosen, "every family is explored as far as a confirmation can go", forecasts)
    if seen.explorable < max(0.5 * slice_, seen.least):
        return _confirm(seen, chosen, "the share for exploring is spent", forecasts)
    chances = _chances(open_ones, chosen, forecasts)
    if chosen not in open_ones and max(chances) < _FUTILITY_THRESHOLD:
        return _confirm(seen, chosen, "no other family is likely to beat it", forecasts)
    capped = {one.name for one in open_ones if _is_capped(one, seen, slice_)}
    allowed = [one for one in open_ones if one.name not in capped]
    if not allowed:
        return _confirm(seen, chosen, "no family may take more without a confirmed gain", forecasts)
    family, gain = _draw(allowed, known, forecasts, seen)
    wanted = slice_ * 2**family.fruitless
    amount = min(wanted, seen.explorable, max(seen.horizon - family.spent, seen.least))
    return CampaignDecision(TRAIN, family.name, amount, _explain(family, gain, forecasts, capped), forecasts)


def forecast(family: FamilyState, seen: Observed) -> Forecast:
    """Extrapolate a learning curve to the horizon with a posterior over gain, pace and delay."""
    start, scale = _start(seen), _scale(seen)
    costs = np.array([one.cost for one in family.points]) / seen.horizon
    scores = (np.array([one.score for one in family.points]) - start) / scale
    errors = np.array([max(one.stderr, 1e-6) for one in family.points]) / scale
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
    random = np.random.default_rng([seen.seed, len(family.points), *family.name.encode()])
    drawn = values[random.choice(len(values), 256, p=weight)] + random.normal(0, _CURVE_ERROR, 256)
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    mean = float((values * weight).sum())
    draws = start + scale * drawn
    return Forecast(start + scale * mean, start + scale * float(low), start + scale * float(high), draws)


def _rise(cost: FloatArray, pace: FloatArray, delay: FloatArray) -> FloatArray:
    """The share of its gain that a curve reaches at a cost."""
    return 1.0 - np.exp(-np.maximum(cost - delay, 0.0) / pace)


def _start(seen: Observed) -> float:
    if seen.baseline is not None:
        return seen.baseline.score
    return min(one.points[0].score for one in seen.families if one.points)


def _scale(seen: Observed) -> float:
    """The remaining range of scores: up to 1 if all scores are between 0 and 1, else three times the observed range."""
    values = [point.score for one in seen.families for point in one.points] + [_start(seen)]
    if min(values) >= 0.0 and max(values) <= 1.0:
        return max(1.0 - _start(seen), 0.05)
    return 3.0 * (max(values) - min(values)) or 1.0


def _next_probe(seen: Observed, slice_: float) -> FamilyState | None:
    fresh = [one for one in seen.families if not one.points and not one.blocked and not one.ended]
    if seen.explorable < max(
        0.5 * slice_, seen.least
    ):  # without budget, only one probe per family, until one has a score
        fresh = [] if any(one.points for one in seen.families) else [one for one in fresh if not one.spent]
    return fresh[0] if fresh else None


def _is_capped(one: FamilyState, seen: Observed, slice_: float) -> bool:
    """Whether a family without a gain has spent half of the exploration budget that was left after the probes."""
    remainder = seen.budget * (1 - seen.confirm_share) - slice_ * len(seen.families)
    return one.spent - slice_ >= 0.5 * max(remainder, slice_) and not has_gain(one, seen)


def has_gain(one: FamilyState, seen: Observed) -> bool:
    """Whether the best score of a family is significantly above the baseline."""
    best, base = one.best, seen.baseline
    if best is None or base is None:
        return False
    return best.score - base.score > _CONFIRMED_Z * float(np.hypot(best.stderr, base.stderr))


def _chances(families: Sequence[FamilyState], leader: FamilyState, forecasts: dict[str, Forecast]) -> list[float]:
    """The probability of each family to exceed the leader at the horizon."""
    level = forecasts[leader.name].draws
    return [float((forecasts[one.name].draws > level).mean()) for one in families]


def _draw(
    allowed: Sequence[FamilyState], known: Sequence[FamilyState], forecasts: dict[str, Forecast], seen: Observed
) -> tuple[FamilyState, float]:
    """Thompson sampling: draw one curve per family, and return the family with the highest gain."""
    random = np.random.default_rng([seen.seed, sum(len(one.points) for one in known)])
    at = int(random.integers(256))
    settled = [one for one in known if one not in allowed]
    best = max([forecasts[one.name].mean for one in settled], default=_start(seen))
    gains = {one.name: float(forecasts[one.name].draws[at]) - best for one in allowed}
    chosen = max(allowed, key=lambda one: gains[one.name])
    return chosen, gains[chosen.name]


def _confirm(seen: Observed, chosen: FamilyState, why: str, forecasts: dict[str, Forecast]) -> CampaignDecision:
    one = forecasts[chosen.name]
    said = f"{why}; {chosen.name} has the best forecast, {one.mean:.3g} ({one.low:.3g} to {one.high:.3g})"
    return CampaignDecision(CONFIRM, chosen.name, max(seen.left, 0.0), said, forecasts)


def _explain(family: FamilyState, gain: float, forecasts: dict[str, Forecast], capped: set[str]) -> str:
    one = forecasts[family.name]
    others = [f"{name} {other.mean:.3g}" for name, other in forecasts.items() if name != family.name]
    said = f"drew a gain of {gain:+.3g} from its forecast of {one.mean:.3g} ({one.low:.3g} to {one.high:.3g})"
    said += f"; others: {', '.join(others)}" if others else ""
    return said + (f"; without a confirmed gain, not more for: {', '.join(sorted(capped))}" if capped else "")
