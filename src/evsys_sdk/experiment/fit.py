"""What of an experiment fits into a given time: how many steps, how many arms, and how often it may be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .estimate import Estimate, PlannedScoring
from .speed import Speed

_SHARE_OF_SCORING = 0.2
"""More of the time than this is better spent on training."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one arm of a run takes, by its parts."""

    steps: int
    start_s: float
    step_s: float
    scorings: tuple[tuple[PlannedScoring, float], ...] = ()
    """Each with its seconds."""

    def seconds(self, steps: int) -> float:
        return self.start_s + steps * self.step_s + self.scoring_s(steps)

    def scoring_s(self, steps: int) -> float:
        return sum(scoring.times(steps) * seconds for scoring, seconds in self.scorings)


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits into so many minutes."""

    minutes: float
    needed_minutes: float | None
    """What everything takes; None where it is not known."""
    fits: bool | None = None
    steps: int | None = None
    """Steps of each arm if all arms are to fit; None where not even one does."""
    arms: int | None = None
    """Arms that fit at their full length, in their order."""
    scoring_share: float = 0.0
    """Share of the needed time that goes into scoring."""
    run_every: int | None = None
    """How seldom to score during training so that this is a fifth; None where it is no more than that."""


def pace_of(estimate: Estimate, speed: Speed | None) -> Pace | None:
    """How long an arm takes; None where its steps or its speed are not known."""
    if speed is None or not estimate.steps:
        return None
    scorings = tuple((one, speed.seconds(trained=0, sampled=round(one.tokens))) for one in estimate.scorings)
    scored = sum(one.times(estimate.steps) * one.tokens for one in estimate.scorings)
    rolled_out = max(estimate.tokens_sampled - scored, 0)
    in_training = speed.seconds(trained=estimate.tokens_trained, sampled=round(rolled_out))
    return Pace(estimate.steps, speed.start_s, in_training / estimate.steps, scorings)


def fit_into(minutes: float, paces: Sequence[tuple[Pace | None, int]], together: int) -> Fit:
    """What fits; each pace comes with the number of its arms, and `together` arms run at once."""
    known = [(pace, arms) for pace, arms in paces if pace is not None]
    if len(known) < len(paces) or not known:
        return Fit(minutes, None)
    room = minutes * 60 * together
    needed = _needed(known, 1.0)
    scoring = sum(pace.scoring_s(pace.steps) * arms for pace, arms in known)
    longest = max(pace.steps for pace, _ in known)
    share = _largest_share(known, room)
    return Fit(
        minutes,
        needed / 60 / together,
        fits=needed <= room,
        steps=None if share is None else max(int(longest * share), 1),
        arms=_count_arms(known, room),
        scoring_share=scoring / needed if needed else 0.0,
        run_every=_seldom_enough(known),
    )


def _needed(paces: Sequence[tuple[Pace, int]], share: float) -> float:
    return sum(pace.seconds(max(int(pace.steps * share), 1)) * arms for pace, arms in paces)


def _largest_share(paces: Sequence[tuple[Pace, int]], room: float) -> float | None:
    """The largest part of its steps that every arm can take; None where even one step each is too much."""
    if _needed(paces, 0.0) > room:
        return None
    low, high = 0.0, 1.0
    if _needed(paces, high) <= room:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _needed(paces, middle) <= room else (low, middle)
    return low


def _count_arms(paces: Sequence[tuple[Pace, int]], room: float) -> int:
    fitting = 0
    for pace, arms in paces:
        each = pace.seconds(pace.steps)
        more = min(arms, int(room / each)) if each else arms
        fitting, room = fitting + more, room - more * each
        if more < arms:
            break
    return fitting


def _seldom_enough(paces: Sequence[tuple[Pace, int]]) -> int | None:
    """Steps between two scorings with which those during training take a fifth of an arm's time."""
    pace = max(
        (pace for pace, _ in paces), key=lambda one: one.scoring_s(one.steps) / max(one.seconds(one.steps), 1e-9)
    )
    each = sum(seconds for scoring, seconds in pace.scorings if scoring.every)
    if not each or pace.scoring_s(pace.steps) <= _SHARE_OF_SCORING * pace.seconds(pace.steps):
        return None
    return max(int(each * (1 / _SHARE_OF_SCORING - 1) / pace.step_s), 1) if pace.step_s else None
