"""The rules of the verdict. Read `rule` from top to bottom: the first that applies decides.

A claim is *supported* if the simultaneous interval of a run on the reported set lies beyond the claimed effect, for
every possible value of failed samples. `_find_lacks` checks further conditions, such as at least three seeds of each
trained run and registration before the first step. If one of them fails, the verdict is *promising, unconfirmed*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...spend.ledger import STOP_PREFIX
from ...training.callback import is_deadline_stop
from ..hypothesis import Claim, hypothesis_sha256
from .comparison import Analysis, complete, find_best
from .evidence import Evidence
from .model import Comparison, Trend, Verdict
from .question import TRAIN_FIT
from .summary import list_names, number

MIN_SEEDS = 3
"""Minimum number of seeds per trained run for a supported claim; two seeds may hide a high-variance run."""

_UNDECIDED = "the interval holds values on both sides of what was claimed"
_NO_INTERVAL = "there is no interval: without scores by task it needs several seeds that differ"


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict with its reasons."""

    verdict: Verdict
    reasons: Sequence[str] = ()
    remedies: Sequence[str] = ()
    judged: str | None = None
    cleared: Sequence[str] = ()
    """Runs that show the claimed effect."""
    comparable: bool = True
    """False if the scores cannot be used."""


def rule(analysis: Analysis, trend: Trend | None = None) -> Ruling:
    """Decide the verdict on the claim."""
    evidence, claim = analysis.evidence, analysis.claim
    judged = _favourite(analysis, analysis.candidates)
    broken, unusable = [*_find_broken_record(evidence)], [*_find_unusable_scores(analysis)]
    if flaws := [*broken, *unusable, *_find_flaws_of_claim(analysis)]:
        reasons, remedies = zip(*flaws, strict=True)
        return Ruling("invalid", reasons, remedies, judged, comparable=not broken and not unusable)
    if (stopped := evidence.stopped) is not None and not analysis.report.runs:
        limit = "deadline" if is_deadline_stop(stopped) else f"budget ({stopped.removeprefix(STOP_PREFIX)})"
        remedy = "Raise the limit and run the same command again."
        return Ruling("inconclusive", [f"stopped by the {limit} before a run was scored"], [remedy], comparable=False)
    late = [arm.arm for arm in evidence.arms if arm.at_deadline]
    if claim is None:
        return Ruling("inconclusive", ["no hypothesis was stated, so none is judged"], judged=judged)
    if late:
        reason = f"stopped by the deadline: {', '.join(late[:3])} ended before the last planned step"
        return Ruling("inconclusive", [reason], ["Allow more time and run the same command again."], judged)
    if claim.kind == "trend":
        if trend is None:
            reason = f"the scored runs do not differ in `{claim.axis}`, so there is no trend to see"
            return Ruling("inconclusive", [reason])
        return _decide(claim, analysis, {"": trend}, None)
    if analysis.baseline is None:
        return Ruling("inconclusive", ["there is nothing to compare with: one run and no baseline"], judged=judged)
    if not analysis.comparisons or judged is None:
        return Ruling("inconclusive", ["no run but the baseline has a score"], judged=judged)
    return _decide(claim, analysis, {one.run: one for one in analysis.comparisons}, judged)


def _favourite(analysis: Analysis, names: Sequence[str]) -> str | None:
    """The best run on the selection set in the direction of the claim; runs without failed seeds take precedence."""
    sign, runs = analysis.question.sign, analysis.selection.runs
    return find_best(sign, runs, complete(analysis.evidence, names)) or find_best(sign, runs, names)


def _find_broken_record(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield reasons in the record that invalidate every conclusion, each with its remedy."""
    if (why := evidence.invalidated) is not None:
        yield f"the experiment was invalidated: {why}", "Run it again without that flaw, or reinstate it."
    if (why := evidence.contradicted) is not None:
        remedy = "See `evsys audit`. Restore the files, or run the experiment again."
        yield f"the audit found a contradiction ({why})", remedy


def _find_unusable_scores(analysis: Analysis) -> Iterator[tuple[str, str]]:
    report, evidence = analysis.report, analysis.evidence
    if not report.runs and evidence.stopped is None:
        # The first sentence: the whole reason is listed under `Not scored`.
        first = next((f", first `{arm}`: {why.split('. ')[0].rstrip('.')}" for arm, why in report.unusable.items()), "")
        remedy = "Repair what is listed under `Not scored`, or name another metric, and run again with --resume."
        yield f"no run has a score for {analysis.question.title}{first}", remedy
    if len(report.hashes) > 1 or len(analysis.selection.hashes) > 1:
        remedy = "Name the benchmark by its id and score all runs again."
        yield "the runs were not scored on the same tasks: the benchmark changed between them", remedy


def _find_flaws_of_claim(analysis: Analysis) -> Iterator[tuple[str, str]]:
    evidence, baseline = analysis.evidence, analysis.baseline
    if evidence.registered and evidence.registered_sha256 != hypothesis_sha256(evidence.metadata):
        remedy = "Restore `metadata` in config.json; to test another claim, start another experiment."
        yield "the hypothesis is not the one that was registered before the first step", remedy
    if analysis.claim is None or baseline is None or not analysis.report.runs or analysis.baseline_scores is not None:
        return
    if (run := evidence.run(baseline.name)) is None:
        known = ", ".join(one.name for one in evidence.runs)
        yield f"the baseline `{baseline.name}` is not a run of this experiment", f"Name one of: {known}."
        return
    why = next(iter(run.problems.values()), "it was not scored")
    remedy = "Repair it and run again with --resume, or name another baseline in a new experiment."
    yield f"the baseline `{baseline.name}` has no score: {why}", remedy


def _decide(claim: Claim, analysis: Analysis, effects: Mapping[str, Comparison | Trend], judged: str | None) -> Ruling:
    """Decide by the intervals of all effects: one for each compared run, or the trend."""
    sign, limit, is_trend = analysis.question.sign, claim.threshold, claim.kind == "trend"
    if analysis.report.is_saturated:
        return Ruling("inconclusive", [_explain_saturation(analysis)], judged=judged)
    # Oriented so that higher values favour the claim.
    bounds = {
        name: (one.low, one.high) if sign > 0 else (-one.high, -one.low)
        for name, one in effects.items()
        if one.low is not None and one.high is not None
    }
    if len(bounds) < len(effects):
        return Ruling("inconclusive", [_NO_INTERVAL], judged=judged)
    runs = [run.name for run in analysis.evidence.runs]
    lacking = {name: _find_lacks(analysis, runs if is_trend else [name]) for name in bounds}
    # If validation selected a run, it alone is tested, at the full error rate.
    if cleared := [name for name in bounds if analysis.preferred in (None, name) and bounds[name][0] > limit]:
        whole = [name for name in cleared if not lacking[name]]
        best = _favourite(analysis, whole or cleared) or cleared[0]
        verdict: Verdict = "supported" if whole else "promising_unconfirmed"
        return Ruling(verdict, lacking[best], judged=None if is_trend else best, cleared=whole or cleared)
    if all(ends[1] < limit for ends in bounds.values()):
        doubts = lacking[judged or ""] if is_trend else _doubts_about_refuting(analysis)
        return Ruling("inconclusive" if doubts else "refuted", doubts, judged=judged)
    return Ruling("inconclusive", [_UNDECIDED, *lacking[judged or ""]], judged=judged)


def _find_lacks(analysis: Analysis, names: Sequence[str]) -> list[str]:
    """List the unmet conditions for a supported claim about these runs and the baseline."""
    report, evidence, skipped = analysis.report, analysis.evidence, analysis.question.skipped
    names = [*names, *filter(None, [analysis.baseline and analysis.baseline.run])]
    sound = complete(evidence, names)
    lost = [name for name in names if name not in sound or name not in report.runs]
    few = [name for name in names if name in report.runs and report.runs[name].n_seeds < MIN_SEEDS]
    lacks = (
        (lost, f"not all seeds of {list_names(lost)} ended with a score, and the rest are no fair sample"),
        (few, f"fewer than {MIN_SEEDS} seeds of {list_names(few)}, which a supported claim needs"),
        (report.n_clusters == 1, "all tasks belong to one cluster, so nothing tells how it would be on another"),
        (skipped, f"no run has a score on the test set {'/'.join(skipped or ())}"),
        (
            analysis.question.metric.startswith(TRAIN_FIT),
            "the score is on the training rows, which says nothing about other ones",
        ),
        (not evidence.registered, "nothing shows that the claim was made before the first step"),
    )
    return [reason for applies, reason in lacks if applies]


def _doubts_about_refuting(analysis: Analysis) -> list[str]:
    """Reasons against a refutation even though no interval contains the claimed effect."""
    base, report = analysis.baseline_scores, analysis.report
    compared = [*(report.runs[name] for name in analysis.candidates), *([base] if base is not None else [])]
    found: list[str] = []
    if any(run.trained and run.n_seeds < 2 for run in compared):
        found.append("the effect was not seen, but one seed cannot tell seed variance from a bad recipe")
    if lost := [run.name for run in analysis.evidence.runs if run.name not in report.runs]:
        found.append(f"the effect was not seen, but {list_names(lost)} without a score might have shown it")
    return found


def _explain_saturation(analysis: Analysis) -> str:
    """Describe the saturation, with the cause found by the diagnosis of training."""
    value, findings = next(iter(analysis.report.runs.values())).mean, analysis.evidence.findings
    cause = f" (diagnosis: {findings[0].rstrip('.')})" if findings else ""
    return f"saturated: every run scores {number(value)} on every task, so that no effect can be measured{cause}"
