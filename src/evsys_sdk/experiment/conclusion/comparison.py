"""The statistics of one question: each run against the baseline, and which run is best.

Names go in alphabetical order through the statistics, so that the order of a config changes nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..statistics.multiplicity import MaxT, max_t
from ..statistics.noise import Plan, smallest_detectable
from ..statistics.student_t import t_quantile
from ..statistics.two_level import Differences, RunScores, compare
from ..statistics.winner import shrunk
from .evidence import Evidence
from .measured import Measured, measure
from .model import Comparison
from .question import Baseline, Question

_NOTABLY_CHEAPER = 0.95
"""A run must cost less than this share of another to win a tie by its price."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question answered as far as the record goes."""

    question: Question
    baseline: Baseline | None
    report: Measured
    selection: Measured
    candidates: tuple[str, ...]
    """Runs that are compared with the baseline."""
    comparisons: tuple[Comparison, ...] = ()
    """In the order of `candidates`."""
    differences: Differences | None = None
    correction: MaxT | None = None
    eliminated: int = 0
    """Runs that a search compared and stopped; they have no score and count in the correction."""

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
        """The smallest effect of a typical run that this experiment would have seen in 80 % of repetitions."""
        if self.differences is None or self.correction is None:
            return None
        stderr = statistics.median(self.differences.stderr.tolist())
        return smallest_detectable(stderr, self.correction.critical(), self.correction.df)

    def plan(self, run: str) -> Plan | None:
        """What a repetition for the sake of one run is planned from; None where the noise of seeds is unknown."""
        differences, correction, base = self.differences, self.correction, self.baseline_scores
        if differences is None or correction is None or differences.noise is None or base is None:
            return None
        at = self.candidates.index(run)
        mine = self.report.runs[run]
        seeds = 2 / (1 / mine.n_seeds + 1 / base.n_seeds) if base.trained else float(mine.n_seeds)
        return Plan(
            task_variance=float(differences.task_variance[at]),
            seeds_now=seeds,
            noise=differences.noise,
            runs=len(self.candidates) + int(base.trained),
            critical_now=correction.critical(),
            df_now=correction.df,
            frozen_baseline=not base.trained,
        )


def analyse(evidence: Evidence, question: Question, baseline: Baseline | None) -> Analysis:
    """Compare every scored run with the baseline."""
    report = measure(evidence, question, question.report)
    selection = report if question.shared else measure(evidence, question, question.selection)
    return answer(question, baseline, report, selection, eliminated=len(evidence.eliminated))


def answer(
    question: Question, baseline: Baseline | None, report: Measured, selection: Measured, *, eliminated: int = 0
) -> Analysis:
    """The same from arrays."""
    base = scores_of(report, baseline)
    own = baseline.name if baseline is not None and baseline.kind == "run" else None
    candidates = tuple(name for name in report.runs if name != own)
    if base is None or not candidates:
        return Analysis(question, baseline, report, selection, candidates)
    scores = [report.runs[name] for name in candidates]
    differences = compare(base, scores)
    if differences is None:
        bare = tuple(_bare(name, run.mean - base.mean) for name, run in zip(candidates, scores, strict=True))
        return Analysis(question, baseline, report, selection, candidates, bare, eliminated=eliminated)
    correction = max_t(differences, unseen=eliminated)
    comparisons = _comparisons(candidates, differences, correction, widest=1.0 if question.is_rate else math.inf)
    return Analysis(question, baseline, report, selection, candidates, comparisons, differences, correction, eliminated)


def scores_of(measured: Measured, baseline: Baseline | None) -> RunScores | None:
    """The scores of the baseline, if it has any."""
    if baseline is None:
        return None
    return measured.base_model if baseline.kind == "model" else measured.runs.get(baseline.name)


def choose(
    measured: Measured, names: Sequence[str], sign: int, cost: Callable[[str], Sequence[float | None]]
) -> str | None:
    """The run with the best score, or a notably cheaper one that lies within one standard error of it.

    The one-standard-error rule: what cannot be told apart from the best is as good as the best, so price decides.
    """
    scored = sorted(name for name in names if name in measured.runs)
    if not scored:
        return None
    top = max(scored, key=lambda name: sign * measured.runs[name].mean)
    others = [name for name in scored if name != top]
    if not others:
        return top
    rest = [run for name, run in measured.runs.items() if name not in scored]
    differences = compare(measured.runs[top], [measured.runs[name] for name in others], pool=rest)
    ties = [top]
    for at, name in enumerate(others):
        distance = abs(measured.runs[name].mean - measured.runs[top].mean)
        stderr = 0.0 if differences is None else float(differences.stderr[at])
        if distance <= max(stderr, 1e-12):
            ties.append(name)
    return _cheapest(ties, cost)


def _cheapest(ties: Sequence[str], cost: Callable[[str], Sequence[float | None]]) -> str:
    """The first name, unless another is notably cheaper by the first kind of price that all of them have."""
    for prices in zip(*(cost(name) for name in ties), strict=True):
        known = [price for price in prices if price is not None]
        if len(known) < len(ties):
            continue
        at = min(range(len(ties)), key=lambda index: known[index])
        if known[at] < _NOTABLY_CHEAPER * known[0]:
            return ties[at]
        if any(known):
            return ties[0]
    return ties[0]


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


def _bare(name: str, difference: float) -> Comparison:
    return Comparison(name, difference, None, None, None, None, None, difference, None)


def _comparisons(
    names: Sequence[str], differences: Differences, correction: MaxT, *, widest: float
) -> tuple[Comparison, ...]:
    critical = correction.critical()
    adjusted = shrunk(differences)
    found: list[Comparison] = []
    for at, name in enumerate(names):
        estimate, stderr = float(differences.estimates[at]), float(differences.stderr[at])
        df = float(differences.df[at])
        plain = t_quantile(0.975, df) * stderr
        found.append(
            Comparison(
                run=name,
                difference=estimate,
                low=max(estimate - critical * stderr, -widest),
                high=min(estimate + critical * stderr, widest),
                plain_low=max(estimate - plain, -widest),
                plain_high=min(estimate + plain, widest),
                p=correction.p_value(estimate / stderr),
                adjusted=float(adjusted[at]),
                df=df,
            )
        )
    return tuple(found)
