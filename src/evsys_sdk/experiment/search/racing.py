"""Seed racing: more seeds for the best runs of a search, until their order is clear or the seeds are used up.

The leaders of whatever came before (a grid, a halving) are each trained with `min_seeds` seeds, and then with one more
at a time. A run drops out when the interval of its difference to the leader excludes zero. The race is over when one
run is left, when what may be left between them is smaller than the effect that matters, or at `max_seeds`.

Intervals are two-level (seeds and tasks, see `statistics.two_level`) and wider for every look that may be taken, so
that looking after each seed does not make a winner out of luck. The race decides where work goes; what it showed is
the business of the conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...config import ExperimentConfig, Hypothesis, Race
from ..arms.arm import Arm
from .allocation import Allocation, AllocationDecision, ArmOutcome, ArmRequest, all_settled
from .objective import Objective

type ScoresOf = Callable[[Arm], Mapping[str, float]]
"""What a finished arm scored on each task, or its only score under `""`; nothing where it has none."""


@dataclass(frozen=True, slots=True)
class RacingRules:
    """When a race begins and ends."""

    top: int = 2
    min_seeds: int = 3
    max_seeds: int = 5
    first_seeds: int = 1
    """Seeds that every run has from the search itself."""
    min_effect: float = 0.0
    """Smallest difference that matters; a smaller one need not be resolved."""

    @classmethod
    def of(cls, race: Race, config: ExperimentConfig) -> RacingRules:
        claim = config.metadata.hypothesis
        effect = claim.min_effect if isinstance(claim, Hypothesis) else 0.0
        return cls(race.top, race.min_seeds, race.max_seeds, config.n_repeats, effect)

    @property
    def confidence(self) -> float:
        """Of each interval, such that all looks at all rivals together err in one of 20 races at most."""
        looks = max(self.max_seeds - max(self.min_seeds, self.first_seeds) + 1, 1)
        return 1 - 0.05 / (looks * (self.top - 1))  # Bonferroni: it holds however much one look tells about another


@dataclass(frozen=True, slots=True)
class RaceGap:
    """How far a run lies behind the leader."""

    difference: float
    half_width: float | None
    """None where nothing tells how noisy it is."""

    @property
    def is_clear(self) -> bool:
        return self.half_width is not None and abs(self.difference) > self.half_width

    def is_below(self, effect: float) -> bool:
        """Whether the runs differ by less than that, whichever is ahead."""
        return self.half_width is not None and abs(self.difference) + self.half_width < effect


class Racing:
    """Adds seeds to the leaders of another allocation."""

    def __init__(
        self,
        before: Allocation,
        rules: RacingRules,
        objective: Objective,
        *,
        seeded: Callable[[str, int], Arm],
        scores: ScoresOf,
    ) -> None:
        """`seeded(run, k)` is the arm of a run's k-th seed, counted from 0."""
        self._before, self._rules, self._objective = before, rules, objective
        self._seeded, self._read = seeded, scores
        self._known: dict[str, Mapping[str, float]] = {}
        self._places: dict[str, int] = {}
        self._last = AllocationDecision([])

    def decide(self, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        first = self._before.decide(outcomes)
        if not all_settled(outcomes, [request.key for request in first.requests]):
            return first
        found = self._race(first, outcomes)
        if (len(found.requests), len(found.notes)) != (len(self._last.requests), len(self._last.notes)):
            self._last = found
        return self._last

    def _race(self, first: AllocationDecision, outcomes: Sequence[ArmOutcome]) -> AllocationDecision:
        finished = {outcome.request.arm.name: outcome.request.arm for outcome in outcomes if outcome.result.is_scored}
        requested = {request.arm.name for request in first.requests}
        requests, notes = list(first.requests), list(first.notes)
        self._places = {request.arm.of_run: place for place, request in enumerate(first.requests)}
        racing = self._leaders([arm for name, arm in finished.items() if name in requested])
        if len(racing) < 2:
            why = f"{len(racing)} of the runs ended with a score; a race needs two"
            return AllocationDecision(requests, [*notes, {"race": 0, "added": [], "why": why}])
        seeds = max(self._rules.first_seeds, min(self._rules.min_seeds, self._rules.max_seeds))
        gaps: dict[str, RaceGap] = {}
        for look in range(self._rules.max_seeds + 1):
            arms = {run: [self._seeded(run, repeat) for repeat in range(seeds)] for run in racing}
            new = [ArmRequest(arm) for each in arms.values() for arm in each if arm.name not in requested]
            if new:
                notes.append(self._note(look, racing, gaps, [request.arm.name for request in new], seeds))
                requests += new
                requested |= {request.arm.name for request in new}
            if not all_settled(outcomes, [request.key for request in new]):
                break
            racing, gaps = self._standings({run: [a for a in each if a.name in finished] for run, each in arms.items()})
            if why := self._over(racing, gaps, seeds):
                notes.append({**self._note(look + 1, racing, gaps, [], seeds), "why": why})
                break
            seeds += 1
        return AllocationDecision(requests, notes)

    def _leaders(self, arms: Sequence[Arm]) -> list[str]:
        """The best runs by the mean of their seeds, the best first; of equal ones, in the order of the config."""
        by_run: dict[str, list[float]] = {}
        for arm in sorted(arms, key=lambda arm: arm.repeat):
            if scores := self._scores(arm):
                by_run.setdefault(arm.of_run, []).append(fmean(scores.values()))
        return self._rank({run: fmean(found) for run, found in by_run.items()})[: self._rules.top]

    def _rank(self, means: Mapping[str, float]) -> list[str]:
        return sorted(means, key=lambda run: (-self._objective.sign * means[run], self._places[run]))

    def _standings(self, arms: Mapping[str, Sequence[Arm]]) -> tuple[list[str], dict[str, RaceGap]]:
        """Who is still in the race, the leader first, and how far each other one lies behind it."""
        values = {run: [scores for arm in each if (scores := self._scores(arm))] for run, each in arms.items()}
        means = {run: fmean(fmean(one.values()) for one in found) for run, found in values.items() if found}
        ranked = self._rank(means)
        if len(ranked) < 2:
            return ranked, {}
        gaps = gaps_behind(values[ranked[0]], {run: values[run] for run in ranked[1:]}, self._rules.confidence)
        return [ranked[0], *(run for run in ranked[1:] if not gaps[run].is_clear)], gaps

    def _over(self, racing: Sequence[str], gaps: Mapping[str, RaceGap], seeds: int) -> str | None:
        """Why the race is over; None while it continues."""
        if not racing:
            return "none of them has a score"
        if len(racing) == 1:
            return f"'{racing[0]}' is ahead of all others with {seeds} seeds"
        effect = self._rules.min_effect
        if effect and all(gaps[run].is_below(effect) for run in racing[1:]):
            return f"those that are left differ by less than {effect:g}, the smallest effect that matters"
        if seeds >= self._rules.max_seeds:
            return f"max_seeds is reached; {', '.join(racing)} cannot be told apart with {seeds} seeds"
        return None

    def _note(
        self, look: int, racing: Sequence[str], gaps: Mapping[str, RaceGap], added: Sequence[str], seeds: int
    ) -> dict[str, Any]:
        return {
            "race": look,
            "metric": self._objective.name,
            "mode": self._objective.mode,
            "racing": list(racing),
            "seeds": seeds,
            "gaps": {
                run: {"difference": gap.difference, "half_width": gap.half_width} for run, gap in sorted(gaps.items())
            },
            "confidence": self._rules.confidence,
            "added": list(added),
            "why": f"{len(racing)} runs are not told apart; each is trained with {seeds} seeds",
        }

    def _scores(self, arm: Arm) -> Mapping[str, float]:
        # Having no score is not remembered: an arm that failed may be trained again.
        if not self._known.get(arm.name):
            self._known[arm.name] = self._read(arm)
        return self._known[arm.name]


def gaps_behind(
    leader: Sequence[Mapping[str, float]], rivals: Mapping[str, Sequence[Mapping[str, float]]], confidence: float
) -> dict[str, RaceGap]:
    """For each rival, by how much it scores other than the leader; one mapping of tasks to scores for each seed."""
    import numpy as np

    from ..statistics.student_t import t_quantile
    from ..statistics.two_level import RunScores, compare

    everyone = [leader, *rivals.values()]
    asked = [frozenset(one) for each in everyone for one in each]
    # Runs are paired task by task, so a task counts where every seed of every run has a score for it.
    # Sorted, because sums depend on their order in the last digit, and that of a set changes with every process.
    common = sorted(task for task in asked[0] if all(task in tasks for tasks in asked))
    if common:
        arrays = [np.array([[one[task] for task in common] for one in each]) for each in everyone]
    else:
        arrays = [np.array([[fmean(one.values())] for one in each]) for each in everyone]
    base, *others = [RunScores(array, by_task=bool(common) and common != [""]) for array in arrays]
    found = compare(base, others)
    plain = {run: RaceGap(other.mean - base.mean, None) for run, other in zip(rivals, others, strict=True)}
    if found is None or found.noise is None:  # without two seeds of anything, the luck of training is unknown
        return plain
    widths = [
        t_quantile((1 + confidence) / 2, float(df)) * float(stderr)
        for df, stderr in zip(found.df, found.stderr, strict=True)
    ]
    return {run: RaceGap(plain[run].difference, width) for run, width in zip(rivals, widths, strict=True)}
