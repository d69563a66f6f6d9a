"""The statistics of one question: each run against the baseline, and which run is best.

Names go in alphabetical order through the statistics, so that the order of a config changes nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
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
class Analysis:
    """One question answered as far as the record goes."""

    question: Asked
    baseline: Baseline | None
    report: Measured
    selection: Measured
    candidates: tuple[str, ...]
    """Runs that are compared with the baseline."""
    comparisons: tuple[Comparison, ...] = ()
    """In the order of `candidates`."""
    differences: Differences | None = None
    error: float = ERROR
    """One-sided false positive rate at which the claim is tested."""
    preferred: str | None = None
    """The candidate that validation selected: the only one that is tested, at the whole error rate."""
    eliminated: int = 0
    """Runs that a search compared and stopped; they have no score and count in the correction."""
    last_look: tuple[int, float] | None = None
    """Seeds a run and error rate of the last look, where the experiment was to end as soon as it is decided."""

    @property
    def n_compared(self) -> int:
        return len(self.candidates) + self.eliminated

    @property
    def baseline_scores(self) -> RunScores | None:
        return scores_of(self.report, self.baseline)

    def comparison(self, run: str | None) -> Comparison | None:
        return next((one for one in self.comparisons if one.run == run), None)

    @property
    def detectable(self) -> float | None:
        """Minimum detectable effect of a typical run (80 % power); None where it exceeds the range of the metric."""
        if self.differences is None or not np.all(self.differences.stderr > 0):
            return None
        if self.last_look is not None and (prospect := self.prospect) is not None:
            effect = prospect.detectable(self.last_look[0], error=self.last_look[1])
        else:
            df = round(float(np.median(self.differences.df)), 1)
            tests = 1 if self.preferred is not None else self.n_compared
            widths = t_quantile(1 - self.error / tests, df) + t_quantile(POWER, df)
            effect = widths * float(np.median(self.differences.stderr))
        base = self.baseline_scores
        if base is None or not self.question.is_rate:
            return effect
        room = 1 - base.mean if self.question.sign > 0 else base.mean
        return effect if effect <= max(room, 0.0) else None

    @property
    def prospect(self) -> Prospect | None:
        """What a repetition is planned from; None where the noise of seeds is unknown."""
        return None if self.differences is None else Prospect.of(self.differences, candidates=self.n_compared)


def analyse(evidence: Evidence, question: Asked, baseline: Baseline | None) -> Analysis:
    """Compare every scored run with the baseline."""
    report = measure(evidence, question, question.report)
    selection = report if question.shared else measure(evidence, question, question.selection)
    found = answer(
        question,
        baseline,
        report,
        selection,
        eliminated=len(evidence.eliminated),
        sound=complete(evidence, [run.name for run in evidence.runs]),
        error=error_rate(evidence, report),
    )
    levels = look_levels(evidence)
    return replace(found, last_look=(max(evidence.interim), levels[-1])) if levels else found


def error_rate(evidence: Evidence, report: Measured) -> float:
    """How often luck alone may pass here: less for a later attempt, and for a look before the last seed."""
    levels = look_levels(evidence)
    return levels[find_look(evidence, report)] if levels else attempt_level(evidence)


def attempt_level(evidence: Evidence) -> float:
    """How often luck alone may pass in all looks of this attempt together."""
    return ERROR if evidence.attempt is None else attempt_error(evidence.attempt)


def look_levels(evidence: Evidence) -> Sequence[float]:
    """How often luck alone may pass at each of the planned looks; empty where there is one."""
    looks = sorted(evidence.interim)
    if len(looks) < 2:
        return ()
    return look_errors(tuple(count / looks[-1] for count in looks), attempt_level(evidence))


def find_look(evidence: Evidence, report: Measured) -> int:
    """Which of the planned looks has been reached; what was broken off between two of them is judged as the earlier."""
    # An arm that failed has had its turn; a look is reached when every run has had that many.
    turns = [sum(arm.status in _HAD_THEIR_TURN for arm in run.arms) for run in evidence.runs if run.name in report.runs]
    return max(0, sum(count <= min(turns, default=0) for count in evidence.interim) - 1)


def complete(evidence: Evidence, names: Sequence[str]) -> list[str]:
    """The runs none of whose arms failed; what is left of the others is no fair sample of them."""
    return [name for name in names if (run := evidence.run(name)) is not None and not run.problems]


def answer(
    question: Asked,
    baseline: Baseline | None,
    report: Measured,
    selection: Measured,
    *,
    eliminated: int = 0,
    sound: Sequence[str] | None = None,
    error: float = ERROR,
) -> Analysis:
    """The same from arrays; `sound` names the runs that may be preferred."""
    base = scores_of(report, baseline)
    own = baseline.name if baseline is not None and baseline.kind == "run" else None
    candidates = tuple(name for name in report.runs if name != own)
    if base is None or not candidates:
        return Analysis(question, baseline, report, selection, candidates)
    scores = [report.runs[name] for name in candidates]
    differences = compare(base, scores)
    if differences is None:
        bare = tuple(_bare(name, run.mean - base.mean) for name, run in zip(candidates, scores, strict=True))
        return Analysis(question, baseline, report, selection, candidates, bare, error=error, eliminated=eliminated)
    several = len(candidates) + eliminated > 1  # one run alone is chosen from nothing
    preferred = _prefer(question, selection, candidates, sound) if several and not question.shared else None
    tests = {name: 1 if name == preferred else len(candidates) + eliminated for name in candidates}
    widest = _widest(question, baseline)
    comparisons = _comparisons(tests, differences, error, widest)
    if report.lowest:
        comparisons = _bound(comparisons, baseline, report, tests, error, widest)
    return Analysis(
        question,
        baseline,
        report,
        selection,
        candidates,
        comparisons,
        differences,
        error,
        preferred,
        eliminated,
    )


def _prefer(question: Asked, selection: Measured, candidates: Sequence[str], sound: Sequence[str] | None) -> str | None:
    """The candidate with the best score on validation; its price does not matter here."""
    known = [name for name in candidates if name in selection.runs and (sound is None or name in sound)]
    return max(known, key=lambda name: question.sign * selection.runs[name].mean, default=None)


def scores_of(measured: Measured, baseline: Baseline | None) -> RunScores | None:
    """The scores of the baseline, if it has any; a level is a model that scores it on every task."""
    if baseline is None:
        return None
    if baseline.kind == "level":
        like = next(iter(measured.runs.values()), None)
        if like is None:
            return None
        values = np.full((1, like.values.shape[1]), float(baseline.level or 0.0))
        return RunScores(values, by_task=like.by_task, trained=False, is_level=True, clusters=like.clusters)
    return measured.base_model if baseline.kind == "model" else measured.runs.get(baseline.name)


def run_costs(evidence: Evidence) -> Callable[[str], Sequence[float | None]]:
    """What an arm of a run costs: dollars, else tokens, else steps; None where it is not known for all of them.

    The median, because an arm that was killed and went on paid for some steps twice, which is not the recipe's fault.
    """

    def middle(values: Sequence[float | int | None]) -> float | None:
        known = [float(value) for value in values if value is not None]
        return statistics.median(known) if known and len(known) == len(values) else None

    def cost(name: str) -> Sequence[float | None]:
        run = evidence.run(name)
        arms = [arm for arm in run.arms if arm.ended] if run else []
        return [middle([getattr(arm, price) for arm in arms]) for price in ("usd", "tokens", "steps")]

    return cost


def over_limits(evidence: Evidence, claim: Claim, run: str) -> dict[str, float | None]:
    """The limits of the claim that an arm of a run exceeds, with what it uses; None where that is not known."""
    usd, tokens, _ = run_costs(evidence)(run)
    used = {"usd": usd, "tokens": tokens}
    return {name: used[name] for name, limit in claim.limits.items() if (known := used[name]) is None or known > limit}


def _bare(name: str, difference: float) -> Comparison:
    return Comparison(name, difference, None, None, None, None, None, None)


def _widest(question: Asked, baseline: Baseline | None) -> tuple[float, float]:
    """Where every difference lies."""
    if not question.is_rate:
        return -math.inf, math.inf
    if baseline is not None and baseline.kind == "level":
        return -float(baseline.level or 0.0), 1 - float(baseline.level or 0.0)
    return -1.0, 1.0


def _comparisons(
    tests: Mapping[str, int], differences: Differences, error: float, widest: tuple[float, float]
) -> tuple[Comparison, ...]:
    """Simultaneous intervals (Bonferroni) with p-values adjusted by Holm's method; `tests` counts those of each run."""
    dfs = [round(float(df), 1) for df in differences.df]
    stderrs, estimates = differences.stderr.tolist(), differences.estimates.tolist()
    raw = [_p_value(*one) for one in zip(estimates, stderrs, dfs, strict=True)]
    found: list[Comparison] = []
    for at, (name, count) in enumerate(tests.items()):
        width, plain = (t_quantile(1 - error / n, dfs[at]) * stderrs[at] for n in (count, 1))
        found.append(
            Comparison(
                run=name,
                difference=estimates[at],
                low=max(estimates[at] - width, widest[0]),
                high=min(estimates[at] + width, widest[1]),
                plain_low=max(estimates[at] - plain, widest[0]),
                plain_high=min(estimates[at] + plain, widest[1]),
                p=_holm(raw, at, count),
                df=float(differences.df[at]),
            )
        )
    return tuple(found)


def _p_value(estimate: float, stderr: float, df: float) -> float:
    """Two-sided."""
    if stderr <= 0:
        return 1.0 if abs(estimate) <= 1e-12 else 0.0
    return 2 * (1 - t_cdf(abs(estimate) / stderr, df))


def _holm(raw: Sequence[float], at: int, tests: int) -> float:
    """The adjusted p-value; of one test, the p-value itself."""
    if tests == 1:
        return min(1.0, raw[at])
    smaller = sorted(p for p in raw if p <= raw[at])
    return min(1.0, max((tests - rank) * p for rank, p in enumerate(smaller)))


def _bound(
    comparisons: Sequence[Comparison],
    baseline: Baseline | None,
    report: Measured,
    tests: Mapping[str, int],
    error: float,
    widest: tuple[float, float],
) -> tuple[Comparison, ...]:
    """The comparisons with intervals that hold whatever the missing samples were.

    Both are drawn again with what is missing counted against the runs, and against the baseline; how it really was lies
    between, so that the interval from the lowest end to the highest holds at least as often as each of them.
    """
    extremes = [
        _extreme(tests, baseline, report, own, other, error)
        for own, other in ((report.lowest, report.highest), (report.highest, report.lowest))
    ]
    return tuple(
        _widen(one, [None if found is None else found[at] for found in extremes], widest)
        for at, one in enumerate(comparisons)
    )


def _extreme(
    tests: Mapping[str, int],
    baseline: Baseline | None,
    report: Measured,
    own: Mapping[str, RunScores],
    other: Mapping[str, RunScores],
    error: float,
) -> Sequence[Comparison] | None:
    """The comparisons with what is missing filled in, one way for the runs and one for the baseline."""
    base = scores_of(Measured(runs=other, base_model=report.base_model, by_task=True), baseline)
    if base is None or base.values.shape[1] != next(iter(own.values())).values.shape[1]:
        return None  # the model before training has no score for some task
    found = compare(base, [own[name] for name in tests])
    return None if found is None else _comparisons(tests, found, error, (-math.inf, math.inf))


def _widen(one: Comparison, extremes: Sequence[Comparison | None], widest: tuple[float, float]) -> Comparison:
    """One comparison over everything that is missing; as wide as can be where an extreme cannot be drawn."""
    drawn = [one, *(each for each in extremes if each is not None)]
    unknown = [] if len(drawn) > len(extremes) else [widest]

    def ends(kind: str) -> tuple[float, float]:
        pairs = [*((getattr(each, f"{kind}low"), getattr(each, f"{kind}high")) for each in drawn), *unknown]
        return max(min(low for low, _ in pairs), widest[0]), min(max(high for _, high in pairs), widest[1])

    low, high = ends("")
    plain_low, plain_high = ends("plain_")
    # Where the sign itself hangs on what is missing, nothing speaks against luck.
    one_way = not unknown and len({each.difference > 0 for each in drawn}) == 1
    return replace(
        one,
        low=low,
        high=high,
        plain_low=plain_low,
        plain_high=plain_high,
        p=max(each.p or 0.0 for each in drawn) if one_way else 1.0,
        scored_low=one.low,
        scored_high=one.high,
    )
