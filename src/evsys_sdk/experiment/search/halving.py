"""Successive halving: all arms a little, one in `eta` of them `eta` times as long, until one is trained to its end.

Arms are compared when all of them have reached the rung, so that the choice does not depend on which was faster. The
others stay paused there: what they cost is known, and nothing of it is thrown away.

One scoring is noisy, so arms are compared by the mean of their last three. Of equal arms the one that scored more on
the way there is ahead, then the one that does better on its training data. Those that are equal in this, too, continue
together: where nothing tells them apart, nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..arms.arm import Arm
from ..arms.results import ArmResult
from .allocation import AllocationDecision, ArmOutcome, ArmRequest, is_settled
from .objective import Curve, CurveOf, Objective, ProgressOf

# When the arms of a halving are compared: after which of its steps each one pauses.
#
# Comparisons come at equal shares of each run's own length, so that runs of different lengths (batch sizes) and
# learning rates that fall along a schedule are compared at the same stage. The shares are 1/eta, 1/eta^2 ... counted
# from the end, and earlier where that would spread the comparisons beyond the first four ninths: a gentle `eta`
# compares often, and must do so early to be worth it. Each one is moved to the nearest step at which val is scored,
# the first at the earliest to the first scoring.
#
#     rungs_of({"a": 90, ...}, every={"a": 10, ...}, eta=3)      nine such runs: after steps 10 and 30

_LATEST = 4 / 9
"""Share of a run after which no one is compared any more."""


def survivors(n: int, eta: float, keep: int = 1) -> list[int]:
    """How many of `n` runs continue after each comparison, until no more than `keep` are left."""
    found: list[int] = []
    while n > keep:
        # One less at least: rounded up, a gentle `eta` would keep two of two forever.
        n = min(max(math.ceil(n / eta), keep), n - 1)
        found.append(n)
    return found


def rungs_of(
    lengths: Mapping[str, int],
    *,
    every: Mapping[str, int],
    eta: float,
    keep: int = 1,
    shares: Sequence[float] | None = None,
) -> dict[str, list[int]]:
    """For each arm of these lengths in steps, where it pauses; all arms pause equally often.

    `every` says for each how many steps apart it can pause. One that is too short for so many pauses limits them for
    all.
    """
    wanted = _usual_shares(len(lengths), eta, keep) if shares is None else shares
    found = {name: _steps(length, every[name], wanted) for name, length in lengths.items()}
    count = min((len(steps) for steps in found.values()), default=0)
    return {name: steps[len(steps) - count :] for name, steps in found.items()}


def _usual_shares(n: int, eta: float, keep: int) -> list[float]:
    needed = len(survivors(n, eta, keep))
    return [min(1 / eta ** (needed - at), _LATEST * (at + 1) / needed) for at in range(needed)]


def _steps(length: int, every: int, shares: Sequence[float]) -> list[int]:
    """Different scorings, each as near to its share as the ones before leave room for, all before the end."""
    steps: list[int] = []
    for share in shares:
        nearest = int(share * length / every + 0.5) * every  # not round(), by which 2.5 is nearer to 2 and 3.5 to 4
        step = max(nearest, steps[-1] + every if steps else every)
        if step < length:
            steps.append(step)
    return steps


@dataclass(frozen=True, slots=True)
class _Standing:
    """How an arm stands at a rung."""

    arm: Arm
    step: int
    score: float | None
    rank: tuple[float, float, float] | None
    """Smaller is better; None without a score."""


class Halving:
    """Decides which arms continue, from what they have scored at each rung."""

    def __init__(
        self,
        arms: Sequence[Arm],
        rungs: Mapping[str, Sequence[int]],
        objective: Objective,
        curve: CurveOf,
        eta: float = 1.5,
        keep: int = 1,
        progress: ProgressOf = lambda arm, step: 0.0,
    ) -> None:
        """`rungs` says for each arm where it pauses, the same number of times for all; `keep` how many finish."""
        self._progress = progress
        self._arms, self._rungs, self._objective, self._curve = list(arms), rungs, objective, curve
        self._count = min((len(rungs[arm.name]) for arm in arms), default=0)
        targets = survivors(len(self._arms), eta, keep)
        # Rungs that the user has set may be more than it takes to get down to `keep`.
        self._targets = (targets + [keep] * self._count)[: self._count]
        self._standings: dict[tuple[str, int], _Standing] = {}
        self._last = AllocationDecision([])

    def decide(self, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        found = self._decide({outcome.request.key: outcome.result for outcome in outcomes})
        # Both only ever grow, so that their numbers tell whether anything is new.
        if (len(found.requests), len(found.notes)) != (len(self._last.requests), len(self._last.notes)):
            self._last = found
        return self._last

    def _decide(self, ended: Mapping[tuple[str, int | None], ArmResult]) -> AllocationDecision:
        requests: list[ArmRequest] = []
        notes: list[dict[str, Any]] = []
        candidates, finished = self._arms, dict[str, ArmResult]()
        for level, target in enumerate(self._targets):
            if len(candidates) <= target:
                continue
            going = [arm for arm in candidates if arm.name not in finished]
            wanted = [ArmRequest(arm, self._rungs[arm.name][level]) for arm in going]
            requests += wanted
            results = {request.arm.name: ended.get(request.key) for request in wanted}
            if not all(result is not None and is_settled(result) for result in results.values()):
                return AllocationDecision(requests, notes)
            finished |= {name: result for name, result in results.items() if result and result.status == "completed"}
            paused = {name for name, result in results.items() if result and result.paused_after is not None}
            alive = [arm for arm in candidates if arm.name in finished or arm.name in paused]
            standings = [self._find_standing(arm, level, arm.name in finished) for arm in alive]
            candidates, note = self._choose(standings, level, target, lost=[a for a in candidates if a not in alive])
            notes.append(note)
        requests += [ArmRequest(arm) for arm in candidates if arm.name not in finished]
        return AllocationDecision(requests, notes)

    def _find_standing(self, arm: Arm, level: int, finished: bool) -> _Standing:
        step = self._rungs[arm.name][level]
        if (arm.name, step) not in self._standings:  # what was scored at a step stays what it was
            seen = {at: score for at, score in self._curve(arm).items() if at <= step}
            self._standings[arm.name, step] = self._judge(arm, step, seen, finished)
        return self._standings[arm.name, step]

    def _judge(self, arm: Arm, step: int, seen: Curve, finished: bool) -> _Standing:
        # One that stopped early, because it had nothing more to learn, is as good as it was then.
        score = seen[max(seen)] if finished and seen else seen.get(step)
        if score is None:
            return _Standing(arm, step, None, None)
        sign, scores = -self._objective.sign, [seen[at] for at in sorted(seen)]
        rank = (sign * fmean(scores[-3:]), sign * fmean(scores), self._progress(arm, step))
        return _Standing(arm, step, score, rank)

    def _choose(
        self, standings: Sequence[_Standing], level: int, target: int, lost: Sequence[Arm]
    ) -> tuple[list[Arm], dict[str, Any]]:
        """The arms that continue, best first, and the note about it."""
        ranked = sorted((one for one in standings if one.rank is not None), key=lambda one: one.rank or ())
        kept = [one for index, one in enumerate(ranked) if index < target or one.rank == ranked[target - 1].rank]
        scores = {one.arm.name: one.score for one in standings} | dict.fromkeys((arm.name for arm in lost), None)
        steps = {arm.name: self._rungs[arm.name][level] for arm in (*(one.arm for one in standings), *lost)}
        going_on = [one.arm.name for one in kept]
        same = len(set(steps.values())) == 1
        note = {
            "rung": level + 1,
            "of": self._count,
            "step": next(iter(steps.values())) if same else None,
            **({} if same else {"steps": steps}),
            "metric": self._objective.name,
            "mode": self._objective.mode,
            "scores": {arm.name: scores[arm.name] for arm in self._arms if arm.name in scores},
            "kept": going_on,
            "stopped": [arm.name for arm in self._arms if arm.name in scores and arm.name not in going_on],
            "why": _why(len(scores), len(ranked), len(kept), target),
        }
        return [one.arm for one in kept], note


def _why(compared: int, scored: int, kept: int, target: int) -> str:
    if not scored:
        return f"none of {compared} has a score, so none goes on"
    if kept > target:
        return (
            f"the best {target} of {compared} go on, and {kept - target} more that cannot be told from the last of them"
        )
    without = f"; {compared - scored} without a score cannot" if scored < compared else ""
    return f"the best {kept} of {compared} {'goes' if kept == 1 else 'go'} on{without}"
