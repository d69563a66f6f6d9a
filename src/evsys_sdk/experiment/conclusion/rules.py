"""The rules of the verdict. Read `rule` from top to bottom: the first that applies decides.

A claim is *supported* if the interval of some run, which holds for all compared runs together, lies beyond what was
claimed, on the set that is reported, however the samples that failed would have turned out, with at least three seeds
on each trained side, within the cost that was allowed, and the claim is the one that was registered before the first
step. What falls short of one of these is *promising, unconfirmed*. Price decides which run is called best, never the
verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...training.callback import is_deadline_stop
from ..hypothesis import Claim, hypothesis_sha256
from .comparison import Analysis, answer, complete, find_best, over_limits
from .evidence import Evidence
from .model import Comparison, Trend, Verdict
from .question import TRAIN_FIT, Baseline
from .summary import count_missing, list_names, number, pluralise

MIN_SEEDS = 3
"""Seeds of each trained run that a supported claim needs: two hide a high-variance run too well."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict and what it rests on."""

    verdict: Verdict
    reasons: Sequence[str] = ()
    remedies: Sequence[str] = ()
    judged: str | None = None
    cleared: Sequence[str] = ()
    """Runs that show what was claimed."""
    comparable: bool = True
    """False where the scores themselves cannot be used."""


def rule(evidence: Evidence, claim: Claim | None, analysis: Analysis, trend: Trend | None = None) -> Ruling:
    """The verdict on the claim."""
    judged = _favourite(evidence, analysis, analysis.candidates)
    broken, unusable = find_broken_record(evidence), [*_find_unusable_scores(evidence, analysis)]
    if flaws := [*broken, *unusable, *_find_flaws_of_claim(evidence, claim, analysis)]:
        reasons, remedies = zip(*flaws, strict=True)
        return Ruling("invalid", reasons, remedies, judged, comparable=not broken and not unusable)
    late = [arm.arm for arm in evidence.arms if arm.at_deadline]
    if claim is None:
        return Ruling("inconclusive", ["no hypothesis was stated, so none is judged"], judged=judged)
    if late:
        reason = f"stopped by the deadline: {', '.join(late[:3])} ended before the last planned step"
        return Ruling("inconclusive", [reason], ["Allow more time and run the same command again."], judged)
    if claim.kind == "trend":
        return _decide_trend(evidence, claim, analysis, trend)
    if analysis.baseline is None:
        return Ruling("inconclusive", ["there is nothing to compare with: one run and no baseline"], judged=judged)
    if not analysis.comparisons or judged is None:
        return Ruling("inconclusive", ["no run but the baseline has a score"], judged=judged)
    return _decide(evidence, claim, analysis, judged)


def _favourite(evidence: Evidence, analysis: Analysis, names: Sequence[str]) -> str | None:
    """The run that the selection set likes best, in the direction of the claim; one without failed seeds, if any is."""
    sign, runs = analysis.question.sign, analysis.selection.runs
    return find_best(sign, runs, complete(evidence, names)) or find_best(sign, runs, names)


def find_broken_record(evidence: Evidence) -> list[tuple[str, str]]:
    """Why nothing may be concluded whatever the scores are, and what to do about each."""
    found: list[tuple[str, str]] = []
    if (why := evidence.invalidated) is not None:
        found.append((f"the experiment was invalidated: {why}", "Run it again without that flaw, or reinstate it."))
    if (why := evidence.contradicted) is not None:
        remedy = "See `evsys audit`. Restore the files, or run the experiment again."
        found.append((f"the audit found a contradiction ({why})", remedy))
    return found


def _find_unusable_scores(evidence: Evidence, analysis: Analysis) -> Iterator[tuple[str, str]]:
    if not analysis.report.runs and not is_deadline_stop(evidence.stopped):
        remedy = "Repair what is listed under `not scored` and run again with --resume."
        yield f"no run has a score for {analysis.question.title}", remedy
    if len(analysis.report.hashes) > 1 or len(analysis.selection.hashes) > 1:
        remedy = "Name the benchmark by its id and score all runs again."
        yield "the runs were not scored on the same tasks: the benchmark changed between them", remedy


def _find_flaws_of_claim(evidence: Evidence, claim: Claim | None, analysis: Analysis) -> Iterator[tuple[str, str]]:
    if evidence.registered and evidence.registered_sha256 != hypothesis_sha256(evidence.metadata):
        remedy = "Restore `metadata` in config.json; to test another claim, start another experiment."
        yield "the hypothesis is not the one that was registered before the first step", remedy
    baseline = analysis.baseline
    if claim is not None and analysis.report.runs and baseline is not None and analysis.baseline_scores is None:
        yield _lost_baseline(evidence, baseline)


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


def _decide(evidence: Evidence, claim: Claim, analysis: Analysis, judged: str) -> Ruling:
    sign, limit = analysis.question.sign, claim.threshold
    if analysis.report.is_saturated:
        return Ruling("inconclusive", [_explain_saturation(evidence, analysis)], judged=judged)
    if all(one.low is None for one in analysis.comparisons):
        return Ruling("inconclusive", [_no_interval(analysis)], judged=judged)
    dear = {one.run: over for one in analysis.comparisons if (over := over_limits(evidence, claim, one.run))}
    # A cost that is not known refutes nothing; it is told among what the claim lacks.
    too_dear = {name for name, over in dear.items() if any(used is not None for used in over.values())}
    # The run that validation selected is tested alone, at the whole error rate.
    tested = [one for one in analysis.comparisons if analysis.preferred in (None, one.run)]
    seen = [one.run for one in tested if _clears(one, sign, limit)]
    cleared = [name for name in seen if name not in too_dear]
    if cleared:
        lacking = {name: _find_lacks(evidence, claim, analysis, name) for name in cleared}
        whole = [name for name in cleared if not lacking[name]]
        best = _favourite(evidence, analysis, whole or cleared) or cleared[0]
        verdict: Verdict = "supported" if whole else "promising_unconfirmed"
        return Ruling(verdict, lacking[best], judged=best, cleared=whole or cleared)
    if all(one.run in too_dear or _excludes(one, sign, limit) for one in analysis.comparisons):
        doubts = _doubts_about_refuting(evidence, analysis)
        reasons = doubts or [_too_dear(claim, name, dear[name]) for name in seen]
        return Ruling("inconclusive" if doubts else "refuted", reasons, judged=seen[0] if seen else judged)
    affordable = [one.run for one in analysis.comparisons if one.run not in too_dear]
    judged = _favourite(evidence, analysis, affordable) or judged
    comparison = analysis.comparison(judged) or analysis.comparisons[0]
    lacking = _find_lacks(evidence, claim, analysis, comparison.run)
    if reason := _promise(analysis, comparison, limit):
        return Ruling("promising_unconfirmed", [reason, *lacking], judged=judged)
    return Ruling("inconclusive", [_explain_undecided(comparison, sign, claim), *lacking], judged=judged)


def _decide_trend(evidence: Evidence, claim: Claim, analysis: Analysis, found: Trend | None) -> Ruling:
    if found is None:
        return Ruling("inconclusive", [f"the scored runs do not differ in `{claim.axis}`, so there is no trend to see"])
    if analysis.report.is_saturated:
        return Ruling("inconclusive", [_explain_saturation(evidence, analysis)])
    bounds = orient(found.low, found.high, analysis.question.sign)
    if bounds is None:
        return Ruling("inconclusive", [_no_interval(analysis)])
    few = [name for name in found.runs if analysis.report.runs[name].n_seeds < MIN_SEEDS]
    lacking = [f"{list_names(few)} {'have' if few[1:] else 'has'} fewer than {MIN_SEEDS} seeds"] if few else []
    lost = [run.name for run in evidence.runs if run.name not in found.runs or run.problems]
    if lost:
        lacking.append(f"not all seeds of {list_names(lost)} ended with a score, and the rest are no fair sample")
    lacking += _find_lacks_of_any(evidence, analysis)
    if bounds[0] > claim.min_effect:
        return Ruling("promising_unconfirmed" if lacking else "supported", lacking)
    if bounds[1] < claim.min_effect:
        return Ruling("inconclusive" if lacking else "refuted", lacking)
    what = "the claimed change and less" if claim.min_effect else "a rise and a fall"
    return Ruling("inconclusive", [f"the interval of the change holds both {what}", *lacking])


def orient(low: float | None, high: float | None, sign: int) -> tuple[float, float] | None:
    """An interval in which more is what is claimed."""
    if low is None or high is None:
        return None
    return (low, high) if sign > 0 else (-high, -low)


def _clears(comparison: Comparison, sign: int, limit: float) -> bool:
    """Whether what was scored lies beyond the limit; whether what is missing could change that is asked later."""
    bounds = orient(comparison.scored_low, comparison.scored_high, sign)
    bounds = bounds or orient(comparison.low, comparison.high, sign)
    return bounds is not None and bounds[0] > limit


def _excludes(comparison: Comparison, sign: int, limit: float) -> bool:
    bounds = orient(comparison.low, comparison.high, sign)
    return bounds is not None and bounds[1] < limit


def _find_lacks(evidence: Evidence, claim: Claim, analysis: Analysis, judged: str) -> list[str]:
    """What a claim that looks right lacks to be supported."""
    base, baseline = analysis.baseline_scores, analysis.baseline
    found: list[str] = []
    if not complete(evidence, [judged]):
        found.append(f"not all seeds of `{judged}` ended with a score, and the rest are no fair sample")
    if baseline is not None and baseline.kind == "run" and not complete(evidence, [baseline.name]):
        found.append(f"not all seeds of the baseline `{baseline.name}` ended with a score: the best may be missing")
    if (seeds := analysis.report.runs[judged].n_seeds) < MIN_SEEDS:
        found.append(f"`{judged}` has {pluralise(seeds, 'seed')}, and a supported claim needs {MIN_SEEDS}")
    if base is not None and base.trained and base.n_seeds < MIN_SEEDS and baseline is not None:
        has = pluralise(base.n_seeds, "seed")
        found.append(f"the baseline `{baseline.name}` has {has}, and a supported claim needs {MIN_SEEDS}")
    comparison = analysis.comparison(judged)
    seen = comparison is not None and _clears(comparison, analysis.question.sign, claim.threshold)
    worst = None if comparison is None else orient(comparison.low, comparison.high, analysis.question.sign)
    if seen and worst is not None and worst[0] <= claim.threshold:
        found.append(
            f"{count_missing(analysis.report)} without a score might have changed it: with `{judged}` wrong and the "
            f"baseline right there, the interval begins at {number(worst[0], signed=True)}"
        )
    unknown = [name for name, used in over_limits(evidence, claim, judged).items() if used is None]
    if unknown:
        found.append(f"the claim limits {list_names(unknown)}, and the record does not say what `{judged}` used")
    return found + _find_lacks_of_any(evidence, analysis)


def _find_lacks_of_any(evidence: Evidence, analysis: Analysis) -> list[str]:
    """The same, for whatever run is judged."""
    found: list[str] = []
    if analysis.report.n_clusters == 1:
        found.append("all tasks belong to one cluster, so nothing tells how it would be on another")
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
    lost = [run.name for run in evidence.runs if run.name not in analysis.report.runs and not run.eliminated]
    if lost:
        found.append(f"the effect was not seen, but {list_names(lost)} without a score might have shown it")
    return found


def _explain_saturation(evidence: Evidence, analysis: Analysis) -> str:
    """That nothing can be measured here, with the cause that the diagnosis of training found."""
    value = next(iter(analysis.report.runs.values())).mean
    cause = f" (diagnosis: {evidence.findings[0].rstrip('.')})" if evidence.findings else ""
    return f"saturated: every run scores {number(value)} on every task, so that no effect can be measured{cause}"


def _too_dear(claim: Claim, name: str, over: dict[str, float | None]) -> str:
    said = [f"{used:,.6g} {unit}" for unit, used in over.items() if used is not None]
    allowed = [f"{claim.limits[unit]:,.6g}" for unit, used in over.items() if used is not None]
    return f"`{name}` shows the effect, but an arm of it takes {' and '.join(said)}, of {' and '.join(allowed)} allowed"


def _promise(analysis: Analysis, comparison: Comparison, limit: float) -> str | None:
    """A weaker sign of the effect, in words; None where there is none."""
    sign = analysis.question.sign
    plain = orient(comparison.plain_low, comparison.plain_high, sign)
    compared = analysis.n_compared
    if compared > 1 and plain is not None and plain[0] > limit:
        return f"the interval clears the limit only without the correction for {compared} compared runs"
    if analysis.question.shared or sign * comparison.difference < limit:
        return None
    chosen_by = analysis.selection
    found = answer(analysis.question, analysis.baseline, chosen_by, chosen_by, analysis.level, analysis.eliminated)
    seen = found.comparison(comparison.run)
    if seen is None or not _clears(seen, sign, limit):
        return None
    return "the set that chose among the runs shows the effect, and the reported one does not confirm it"


def _explain_undecided(comparison: Comparison, sign: int, claim: Claim) -> str:
    bounds = orient(comparison.low, comparison.high, sign)
    if bounds is None:
        return "nothing tells how noisy the difference is"
    if claim.kind == "not_worse":
        return "the interval holds both a loss that was ruled out and a smaller one"
    if claim.kind == "at_least":
        return "the interval holds scores on both sides of the level"
    if claim.min_effect and bounds[0] > 0:
        return "there is an effect, but it may be smaller than the claimed one"
    if claim.min_effect and bounds[1] > claim.min_effect:
        return "the interval holds both no effect and the claimed one"
    return "the interval holds both a gain and a loss"


def _no_interval(analysis: Analysis) -> str:
    runs = [*analysis.report.runs.values()]
    if any(run.n_seeds > 1 for run in runs):
        return "the seeds agree to the last digit, so nothing tells how far another one would lie from them"
    return "there is one seed and no score by task, so nothing tells how noisy the difference is"
