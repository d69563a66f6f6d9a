"""What of an experiment fits into a given time: how many steps, how many arms, and how often it may be scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from .estimate import Estimate, PlannedScoring
from .speed import Speed

_SHARE_OF_SCORING = 0.05
"""More of the time than this is better spent on training."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one arm of a run takes, by its parts."""

    steps: int
    start_s: float
    """To load the model, once for all arms that share a process."""
    step_s: float
    scorings: tuple[tuple[PlannedScoring, float], ...] = ()
    """Each with its seconds."""

    def seconds(self, steps: int, *, ends: bool = True) -> float:
        """For so many steps with their scorings; an arm that is paused after them has none of those at the end."""
        return steps * self.step_s + self.scoring_s(steps, ends=ends)

    def scoring_s(self, steps: int, *, ends: bool = True) -> float:
        return sum(scoring.times(steps, ends=ends) * seconds for scoring, seconds in self.scorings)

    def in_loop_share(self) -> float:
        """Share of the time that scoring takes while training goes on."""
        each = sum(seconds / scoring.every for scoring, seconds in self.scorings if scoring.every)
        return each / (self.step_s + each) if each else 0.0

    def seldom_enough(self) -> int:
        """Steps between two scorings with which they take no more than their share."""
        each = sum(seconds for scoring, seconds in self.scorings if scoring.every)
        return max(math.ceil(each * (1 / _SHARE_OF_SCORING - 1) / self.step_s), 1) if self.step_s else 1

    def score_every(self, steps: int) -> Pace:
        """The same, with all scorings during training so many steps apart."""
        changed = [(replace(one, every=steps) if one.every else one, seconds) for one, seconds in self.scorings]
        return replace(self, scorings=tuple(changed))


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits into so many minutes."""

    minutes: float
    needed_minutes: float | None
    """What everything takes; None where it is not known."""
    fits: bool | None = None
    steps: int | None = None
    """Steps of each arm if all arms are to fit, scored as `run_every` says; None where not even one does."""
    arms: int | None = None
    """Arms that fit at their full length, in their order."""
    scoring_share: float = 0.0
    """Share of the needed time that goes into scoring."""
    run_every: int | None = None
    """How seldom to score during training so that this takes a twentieth, or how often so that a search can compare its
    arms; None where the config is fine."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Everything there is to do: each pace with the number of its arms."""

    paces: tuple[tuple[Pace, int], ...]
    shares: tuple[float, ...]
    """Of its steps that an arm takes, if it is among those that a search stops; each arm may be any of them."""
    together: int

    def seconds(self, share: float = 1.0) -> float:
        """What it takes if every arm is planned with this share of its steps."""
        return self._start_s() + sum(self._mean(pace, share) * arms for pace, arms in self.paces)

    def scoring_s(self) -> float:
        return (
            self.seconds() - replace(self, paces=tuple((replace(p, scorings=()), n) for p, n in self.paces)).seconds()
        )

    def score_every(self, steps: int) -> _Work:
        return replace(self, paces=tuple((pace.score_every(steps), arms) for pace, arms in self.paces))

    def largest_share(self, room: float) -> float | None:
        """The largest part of its steps that every arm can take; None where even one step each is too much."""
        if self.seconds(0.0) > room:
            return None
        low, high = 0.0, 1.0
        if self.seconds(high) <= room:
            return high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.seconds(middle) <= room else (low, middle)
        return low

    def count_arms(self, room: float) -> int:
        """How many fit at their full length, in their order."""
        fitting, room = 0, room - self._start_s()
        for pace, arms in self.paces:
            each = pace.seconds(pace.steps)
            more = max(min(arms, int(room / each)), 0) if each else arms
            fitting, room = fitting + more, room - more * each
            if more < arms:
                break
        return fitting

    def _start_s(self) -> float:
        arms = sum(arms for _, arms in self.paces)
        return max(pace.start_s for pace, _ in self.paces) * min(self.together, arms)

    def _mean(self, pace: Pace, share: float) -> float:
        planned = max(int(pace.steps * share), 1)
        return fmean(pace.seconds(max(int(planned * part), 1), ends=part >= 1) for part in self.shares)


def pace_of(estimate: Estimate, speed: Speed | None) -> Pace | None:
    """How long an arm takes; None where its steps or its speed are not known."""
    if speed is None or not estimate.steps:
        return None
    scorings = [(one, speed.seconds(sampled=round(one.tokens), read=round(one.read))) for one in estimate.scorings]
    scored = sum(one.times(estimate.steps) * one.tokens for one in estimate.scorings)
    rolled_out = 0 if speed.whole_steps else max(estimate.tokens_sampled - scored, 0)
    in_training = speed.seconds(trained=estimate.tokens_trained, sampled=round(rolled_out))
    return Pace(estimate.steps, speed.start_s, in_training / estimate.steps, tuple(scorings))


def fit_into(
    minutes: float, paces: Sequence[tuple[Pace | None, int]], together: int, shares: Sequence[float] = ()
) -> Fit:
    """What fits; each pace comes with the number of its arms, and `together` arms run at once.

    `shares` says which share of its steps each arm will take where a search stops some of them early.
    """
    known = [(pace, arms) for pace, arms in paces if pace is not None]
    if len(known) < len(paces) or not known:
        return Fit(minutes, None)
    room = minutes * 60 * together
    work = _Work(tuple(known), tuple(shares) or (1.0,), together)
    needed = work.seconds()
    steps, run_every = _size(work, room)
    return Fit(
        minutes,
        needed / 60 / together,
        fits=needed <= room,
        steps=steps,
        arms=work.count_arms(room),
        scoring_share=work.scoring_s() / needed if needed else 0.0,
        run_every=run_every,
    )


def _size(work: _Work, room: float) -> tuple[int | None, int | None]:
    """Steps of the longest arm, and how often to score on the way if not as the config says."""
    longest = max(pace.steps for pace, _ in work.paces)
    worst = max((pace for pace, _ in work.paces), key=Pace.in_loop_share)
    every = max((one.every or 0 for one, _ in worst.scorings), default=0)
    run_every = worst.seldom_enough() if worst.in_loop_share() > _SHARE_OF_SCORING else None

    def count_steps() -> int | None:
        share = (work.score_every(run_every) if run_every else work).largest_share(room)
        return None if share is None else max(int(longest * share), 1)

    steps = count_steps()
    first = int((steps or 0) * min(work.shares))
    if steps is not None and min(work.shares) < 1 and (run_every or every) > first:
        # The arms of a search are compared where they are scored, for the first time before any is stopped.
        run_every = max(first, 1)
        steps = count_steps()
    return steps, run_every
