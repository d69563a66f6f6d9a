"""The rules of the verdict. Read `rule` from top to bottom: the first that applies decides.

A claim is *supported* only if the interval of the difference, corrected for the number of runs compared, lies beyond
the smallest effect that was claimed, on the set that is reported, with at least two seeds on each side, and the claim
is the one that was registered before the first step. What falls short of one of these is *promising, unconfirmed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..hypothesis import hypothesis_sha256
from .comparison import Analysis, answer, choose, run_costs
from .evidence import Evidence
from .measured import saturated
from .model import Comparison, Verdict
from .question import TRAIN_FIT, Baseline


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict and what it rests on."""

    verdict: Verdict
    reasons: Sequence[str] = ()
    remedies: Sequence[str] = ()
    judged: str | None = None
    comparable: bool = True
    """False where the scores themselves cannot be used."""


@dataclass(slots=True)
class _Flaws:
    """What makes a conclusion invalid, and what to do about each."""

    reasons: list[str] = field(default_factory=list[str])
    remedies: list[str] = field(default_factory=list[str])
    comparable: bool = True

    def add(self, reason: str, remedy: str, *, comparable: bool = True) -> None:
        self.reasons.append(reason)
        self.remedies.append(remedy)
        self.comparable = self.comparable and comparable


def rule(evidence: Evidence, claim: dict[str, Any] | None, analysis: Analysis) -> Ruling:
    """The verdict on the claim."""
    judged = _judged(evidence, analysis)
    flaws = _flaws(evidence, claim, analysis)
    if flaws.reasons:
        return Ruling("invalid", flaws.reasons, flaws.remedies, judged, flaws.comparable)
    if claim is None:
        return Ruling("inconclusive", ["no hypothesis was stated, so none is judged"], judged=judged)
    if analysis.baseline is None:
        return Ruling("inconclusive", ["there is nothing to compare with: one run and no baseline"], judged=judged)
    comparison = analysis.comparison(judged)
    if comparison is None:
        return Ruling("inconclusive", ["no run but the baseline has a score"], judged=judged)
    verdict, reasons = _decide(evidence, analysis, comparison, float(claim["min_effect"]))
    return Ruling(verdict, reasons, judged=judged)


def complete(evidence: Evidence, names: Sequence[str]) -> list[str]:
    """The runs none of whose arms failed; what is left of the others is no fair sample of them."""
    return [name for name in names if (run := evidence.run(name)) is not None and not run.problems]


def _judged(evidence: Evidence, analysis: Analysis) -> str | None:
    """The candidate that the selection set prefers, in the direction of the claim."""
    names = [name for name in analysis.candidates if name in analysis.selection.runs]
    eligible = complete(evidence, names) or names
    return choose(analysis.selection, eligible, analysis.question.sign, run_costs(evidence))


def _flaws(evidence: Evidence, claim: dict[str, Any] | None, analysis: Analysis) -> _Flaws:
    flaws = _Flaws()
    if evidence.invalidated is not None:
        flaws.add(
            f"the experiment was invalidated: {evidence.invalidated}",
            "Run it again without that flaw, or reinstate it.",
            comparable=False,
        )
    if evidence.registered and evidence.registered_sha256 != hypothesis_sha256(evidence.metadata):
        flaws.add(
            "the hypothesis is not the one that was registered before the first step",
            "Restore `metadata` in config.json; to test another claim, start another experiment.",
        )
    if not analysis.report.runs:
        flaws.add(
            f"no run has a score for {analysis.question.title}",
            "Repair what is listed under `not scored` and run again with --resume.",
            comparable=False,
        )
    if len(analysis.report.hashes) > 1 or len(analysis.selection.hashes) > 1:
        flaws.add(
            "the runs were not scored on the same tasks: the benchmark changed between them",
            "Name the benchmark by its id and score all runs again.",
            comparable=False,
        )
    lost = analysis.baseline is not None and analysis.baseline_scores is None
    if claim is not None and analysis.report.runs and lost and analysis.baseline is not None:
        flaws.add(*_lost_baseline(evidence, analysis.baseline))
    return flaws


def _lost_baseline(evidence: Evidence, baseline: Baseline) -> tuple[str, str]:
    run = evidence.run(baseline.name)
    if run is None:
        known = ", ".join(one.name for one in evidence.runs)
        return f"the baseline `{baseline.name}` is not a run of this experiment", f"Name one of: {known}."
    if run.eliminated:
        return (
            f"the search stopped the baseline `{baseline.name}`, so nothing can be compared with it",
            "Give the baseline an experiment of its own, or compare the leaders with it in a next one.",
        )
    why = next(iter(run.problems.values()), "it was not scored")
    return f"the baseline `{baseline.name}` has no score: {why}", "Repair it and run again with --resume."


def _decide(
    evidence: Evidence, analysis: Analysis, comparison: Comparison, min_effect: float
) -> tuple[Verdict, list[str]]:
    sign = analysis.question.sign
    bounds = oriented(comparison.low, comparison.high, sign)
    if bounds is None:
        return "inconclusive", [_no_interval(analysis)]
    lacking = _lacking(evidence, analysis, comparison.run)
    if bounds[0] > min_effect:
        return ("promising_unconfirmed", lacking) if lacking else ("supported", [])
    if all(_excluded(one, sign, min_effect) for one in analysis.comparisons):
        doubts = _doubts_about_refuting(evidence, analysis)
        return ("inconclusive", doubts) if doubts else ("refuted", [])
    if reason := _promise(analysis, comparison, min_effect):
        return "promising_unconfirmed", [reason, *lacking]
    return "inconclusive", [_undecided(bounds, min_effect), *lacking]


def oriented(low: float | None, high: float | None, sign: int) -> tuple[float, float] | None:
    """An interval in which more is what is claimed."""
    if low is None or high is None:
        return None
    return (low, high) if sign > 0 else (-high, -low)


def _excluded(comparison: Comparison, sign: int, min_effect: float) -> bool:
    bounds = oriented(comparison.low, comparison.high, sign)
    return bounds is not None and bounds[1] < min_effect


def _lacking(evidence: Evidence, analysis: Analysis, judged: str) -> list[str]:
    """What a claim that looks right lacks to be supported."""
    base = analysis.baseline_scores
    found: list[str] = []
    if analysis.report.runs[judged].n_seeds < 2:
        found.append(f"`{judged}` has one seed, and one seed cannot tell a recipe from its luck")
    if base is not None and base.trained and base.n_seeds < 2 and analysis.baseline is not None:
        found.append(f"the baseline `{analysis.baseline.name}` has one seed, and one seed cannot tell it from its luck")
    if not complete(evidence, [judged]):
        found.append(f"not all seeds of `{judged}` ended with a score, and the rest are no fair sample")
    if analysis.question.skipped is not None:
        found.append(f"no run has a score on the test set {'/'.join(analysis.question.skipped)}")
    if analysis.question.metric.startswith(TRAIN_FIT):
        found.append("the score is on the training rows, which says nothing about other ones")
    if not evidence.registered:
        found.append("nothing shows that the claim was made before the first step")
    return found


def _doubts_about_refuting(evidence: Evidence, analysis: Analysis) -> list[str]:
    """Why an effect cannot be ruled out although no interval reaches it."""
    base = analysis.baseline_scores
    found: list[str] = []
    scores = [analysis.report.runs[name] for name in analysis.candidates]
    if any(run.n_seeds < 2 for run in [*scores, *([base] if base is not None and base.trained else [])]):
        found.append("the effect was not seen, but with one seed bad luck cannot be told from a bad recipe")
    if saturated(analysis.report):
        found.append("the effect was not seen, but every run scores the same on every task, so none could be")
    lost = [run.name for run in evidence.runs if run.name not in analysis.report.runs and not run.eliminated]
    if lost:
        found.append(f"the effect was not seen, but {_listed(lost)} without a score might have shown it")
    return found


def _promise(analysis: Analysis, comparison: Comparison, min_effect: float) -> str | None:
    """A weaker sign of the effect, in words; None where there is none."""
    sign = analysis.question.sign
    plain = oriented(comparison.plain_low, comparison.plain_high, sign)
    compared = analysis.n_compared
    if compared > 1 and plain is not None and plain[0] > min_effect:
        return f"the interval excludes luck only as long as it is not corrected for having compared {compared} runs"
    if analysis.question.shared or sign * comparison.difference < min_effect:
        return None
    chosen_by, lost = analysis.selection, analysis.eliminated
    on_selection = answer(analysis.question, analysis.baseline, chosen_by, chosen_by, eliminated=lost)
    seen = on_selection.comparison(comparison.run)
    bounds = oriented(seen.low, seen.high, sign) if seen is not None else None
    if bounds is None or bounds[0] <= min_effect:
        return None
    return "the set that chose among the runs shows the effect, and the reported one does not confirm it"


def _undecided(bounds: tuple[float, float], min_effect: float) -> str:
    if min_effect and bounds[0] > 0:
        return "there is an effect, but it may be smaller than the claimed one"
    if min_effect and bounds[1] > min_effect:
        return "the interval holds both no effect and the claimed one"
    return "the interval holds both a gain and a loss"


def _no_interval(analysis: Analysis) -> str:
    runs = [*analysis.report.runs.values()]
    if any(run.n_seeds > 1 for run in runs):
        return "the seeds agree to the last digit, so nothing tells how far another one would lie from them"
    return "there is one seed and no score by task, so nothing tells how noisy the difference is"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
