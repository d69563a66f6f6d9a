"""Compare each run with the baseline, and find the best run.

Runs are processed in alphabetical order, so that the order in the config does not affect results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..hypothesis import Claim
from ..statistics.attempts import ERROR, attempt_error, look_errors
from ..statistics.power import POWER, Prospect
from ..statistics.student_t import t_cdf, t_quantile
from ..statistics.two_level import Differences, RunScores, compare
from .evidence import Evidence
from .measured import Measured, measure
from .model import Comparison
from .question import Asked, Baseline

_HAD_THEIR_TURN = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Level:
    """One-sided false positive rates for the test of a claim."""

    trial: float = ERROR
    """Over all interim analyses of this trial; lower for later trials of the claim."""
    here: float = ERROR
    """At the interim analysis that was reached."""
    last: float = ERROR
    """At the last analysis."""
    last_seeds: int = 0
    """Seeds per run at the last analysis; 0 if only one analysis is planned."""
    look: int = 0
    """Index of the interim analysis that was reached, from 0."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The statistics for one question."""

    evidence: Evidence
    claim: Claim | None
    question: Asked
    baseline: Baseline | None
    report: Measured
    selection: Measured
    level: Level
    comparisons: tuple[Comparison, ...] = ()
    """In the order of `candidates`."""
    differences: Differences | None = None
    preferred: str | None = None
    """The candidate that validation selected; it alone is tested, at the full error rate."""

    @property
    def candidates(self) -> list[str]:
        """Runs that are compared with the baseline."""
        return [name for name in self.report.runs if self.baseline is None or name != self.baseline.run]

    @property
    def baseline_scores(self) -> RunScores | None:
        """The scores of the baseline, if any; a claimed level is a model that scores this level on every task."""
        base, runs = self.baseline, self.report.runs
        if base is None or base.kind == "run":
            return None if base is None else runs.get(base.name)
        if base.kind == "model":
            return self.report.base_model
        like = next(iter(runs.values()), None)
        if like is None:
            return None
        values = np.full((1, like.values.shape[1]), float(base.level or 0.0))
        return RunScores(values, trained=False, is_level=True, clusters=like.clusters)

    def comparison(self, run: str | None) -> Comparison | None:
        return next((one for one in self.comparisons if one.run == run), None)

    @property
    def detectable(self) -> float | None:
        """Minimum detectable effect (80 % power), averaged over the runs; None if unknown or out of range."""
        if self.differences is None or not all(one.stderr > 0 for one in self.differences.estimates):
            return None
        if self.level.last_seeds and (prospect := self.prospect) is not None:
            effect = prospect.detectable(self.level.last_seeds, error=self.level.last)
        else:
            error = self.level.here / (1 if self.preferred is not None else len(self.candidates))
            known = [(one.stderr, round(one.df, 1)) for one in self.differences.estimates]
            # The mean rather than the median, because a high-variance run has less power.
            effect = float(np.mean([(t_quantile(1 - error, df) + t_quantile(POWER, df)) * one for one, df in known]))
        return effect if self.room is None or effect <= max(self.room, 0.0) else None

    @property
    def room(self) -> float | None:
        """Distance of the baseline's rate to the best one; None if the metric is no rate."""
        base = self.baseline_scores
        if base is None or not self.question.is_rate:
            return None
        return 1 - base.mean if self.question.sign > 0 else base.mean

    @property
    def prospect(self) -> Prospect | None:
        """The variances for planning a repetition; None if the seed variance is unknown."""
        return None if self.differences is None else Prospect.of(self.differences)


def analyse(evidence: Evidence, claim: Claim | None, question: Asked, baseline: Baseline | None) -> Analysis:
    """Compare every scored run with the baseline."""
    report = measure(evidence, question, question.report)
    selection = report if question.shared else measure(evidence, question, question.selection)
    found = Analysis(evidence, claim, question, baseline, report, selection, find_level(evidence, report))
    base, candidates = found.baseline_scores, found.candidates
    if base is None or not candidates:
        return found
    differences = compare(base, [report.runs[name] for name in candidates])
    if differences is None:
        raw = tuple(Comparison(name, report.runs[name].mean - base.mean) for name in candidates)
        return replace(found, comparisons=raw)
    several = len(candidates) > 1  # a single run needs no selection
    chosen = find_best(question.sign, selection.runs, complete(evidence, candidates))
    found = replace(found, differences=differences, preferred=chosen if several and not question.shared else None)
    return replace(found, comparisons=_compare(found, base, differences))


def find_level(evidence: Evidence, report: Measured) -> Level:
    """The error rates of this trial; between two interim analyses, those of the earlier one apply."""
    trial = ERROR if evidence.attempt is None else attempt_error(evidence.attempt)
    looks = evidence.interim
    if len(looks) < 2:
        return Level(trial, trial, trial)
    # Failed arms count: an interim analysis is reached when every run has that many ended arms.
    turns = [sum(arm.status in _HAD_THEIR_TURN for arm in run.arms) for run in evidence.runs if run.name in report.runs]
    look = max(0, sum(count <= min(turns, default=0) for count in looks) - 1)
    errors = look_errors(tuple(count / looks[-1] for count in looks), trial)
    return Level(trial, errors[look], errors[-1], looks[-1], look)


def complete(evidence: Evidence, names: Iterable[str]) -> list[str]:
    """The runs without failed or unscored arms; the remaining arms of other runs are a biased sample."""
    return [name for name in names if (run := evidence.run(name)) is not None and not run.problems]


def find_best(sign: int, runs: Mapping[str, RunScores], names: Iterable[str]) -> str | None:
    """The run with the best score; None if there is none."""
    return max(sorted(name for name in names if name in runs), key=lambda name: sign * runs[name].mean, default=None)


def _compare(found: Analysis, base: RunScores, differences: Differences) -> tuple[Comparison, ...]:
    """Simultaneous intervals (Bonferroni) with p-values adjusted by Holm's method.

    Missing samples widen an interval: one end takes them as wrong in the run and right in the baseline, the other end
    the opposite, with the same standard error. p is computed for the difference in this range nearest to 0.
    """
    tests = [1 if name == found.preferred else len(found.candidates) for name in found.candidates]
    least, most = found.question.limits
    lowest, highest = (least - base.mean, most - base.mean) if base.is_level else (least - most, most - least)
    intervals: list[Comparison] = []
    for name, one, count in zip(found.candidates, differences.estimates, tests, strict=True):
        nearest = 0.0 if one.low <= 0 <= one.high else min(abs(one.low), abs(one.high))
        # The pooled df applies to the end that can support the claim, the own df to the end that can refute it.
        dfs = [round(one.df, 1), round(one.own_df, 1)]
        p = 2 * (1 - t_cdf(nearest / one.stderr, dfs[0])) if one.stderr > 0 else float(nearest <= 1e-12)
        below, above = (t_quantile(1 - found.level.here / count, df) * one.stderr for df in dfs[:: found.question.sign])
        intervals.append(Comparison(name, one.value, max(one.low - below, lowest), min(one.high + above, highest), p))
    raw = [one.p or 0.0 for one in intervals]
    return tuple(replace(one, p=_holm(raw, at, tests[at])) for at, one in enumerate(intervals))


def _holm(raw: Sequence[float], at: int, tests: int) -> float:
    """The p-value adjusted by Holm's method; unchanged for a single test."""
    if tests == 1:
        return min(1.0, raw[at])
    smaller = sorted(p for p in raw if p <= raw[at])
    return min(1.0, max((tests - rank) * p for rank, p in enumerate(smaller)))
