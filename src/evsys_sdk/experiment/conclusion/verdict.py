"""Draw a conclusion from evidence. Deterministic: the same evidence always gives the same conclusion."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...spend.ledger import STOP_PREFIX
from ...training.callback import is_deadline_stop
from ..hypothesis import Claim, find_claim, hypothesis_sha256, normalise_hypothesis
from ..statistics.student_t import t_quantile
from ..statistics.two_level import RunScores, SeedNoise, contrast, seed_noise
from .advice import find_extremes, list_threats, next_steps
from .comparison import Analysis, analyse, complete, find_best
from .evidence import Evidence, Looks, RunEvidence, find_differing_settings
from .interim import tell_looks
from .measured import UNTRAINED, Measured
from .model import Conclusion, NoiseFloor, Population, RunSummary
from .question import Asked, Baseline, claim_question, find_baseline, success_question
from .rules import Ruling, find_broken_record, rule
from .summary import in_one_sentence, pluralise
from .trend import find_trend


def conclude_from(evidence: Evidence) -> Conclusion:
    """Draw the conclusion."""
    claim = find_claim(evidence.metadata)
    question = claim_question(evidence, claim)
    if question is None:
        return _conclude_nothing(evidence, claim)
    baseline = None if claim is not None and claim.kind == "trend" else find_baseline(evidence, question, claim)
    evidence = _with_parent(evidence, baseline)
    analysis = analyse(evidence, claim, question, baseline)
    trend = find_trend(analysis)
    ruling = rule(analysis, trend)
    extremes = [] if ruling.verdict == "supported" else find_extremes(analysis)
    sequential = tell_looks(analysis, ruling.verdict)
    best, best_score = _find_best(analysis, ruling) if ruling.comparable else (None, None)
    looks = _find_looks(analysis)
    found = Conclusion(
        **_about(evidence),
        verdict=ruling.verdict,
        summary=in_one_sentence(analysis, ruling, best, trend),
        reasons=list(ruling.reasons),
        metric=question.title,
        mode="max" if _better_sign(evidence, question) > 0 else "min",
        selection=None if question.selection is None else "/".join(question.selection),
        report_sha256=next(iter(analysis.report.hashes)) if len(analysis.report.hashes) == 1 else None,
        baseline=None if baseline is None else baseline.name,
        baseline_is=None if baseline is None else baseline.how,
        best_arm=best,
        best_score=best_score,
        runs=_summarise_runs(analysis),
        noise_floor=_find_noise_floor(analysis.report),
        looks=looks,
        not_scored=dict(sorted(analysis.report.unusable.items())),
        threats=list_threats(analysis, looks),
        next=next_steps(analysis, ruling, extremes, sequential),
        extremes=extremes,
        sequential=sequential,
    )
    if claim is not None:
        level, validated = analysis.level.trial, analysis.preferred is not None
        said = claim.rule(question.title, validated=validated, error=level, looks=sorted(evidence.interim))
        found = replace(found, rule=said, error_rate=level, judged=ruling.judged if ruling.comparable else None)
    if not ruling.comparable:
        return found
    return replace(
        found,
        comparisons=sorted(analysis.comparisons, key=lambda one: (-question.sign * one.difference, one.run)),
        n_compared=len(analysis.candidates),
        smallest_detectable=analysis.detectable,
        population=_describe_population(analysis),
        trend=trend,
    )


def _about(evidence: Evidence) -> dict[str, Any]:
    """The fields of a conclusion that do not depend on the scores."""
    sha256 = hypothesis_sha256(evidence.metadata)
    return {
        "experiment": evidence.experiment,
        "hypothesis": normalise_hypothesis(evidence.metadata),
        "hypothesis_sha256": sha256,
        "registered": evidence.registered and evidence.registered_sha256 == sha256,
        "attempt": evidence.attempt,
        "identity": dict(evidence.identity),
        "deviations": list(evidence.deviations),
        "flags": list(evidence.flags),
        "backend": evidence.backend,
    }


def _with_parent(evidence: Evidence, baseline: Baseline | None) -> Evidence:
    """Add the parent run to the evidence if it is the baseline."""
    parent = evidence.parent
    if parent is None or baseline is None or baseline.name != parent.name or evidence.run(parent.name) is not None:
        return evidence
    return replace(evidence, runs=[*evidence.runs, parent])


def _find_best(analysis: Analysis, ruling: Ruling) -> tuple[str | None, float | None]:
    """The best run by the success metric on the selection set, and its reported score."""
    evidence, claim = analysis.evidence, analysis.claim
    question = success_question(evidence) or analysis.question
    same = question == analysis.question
    found = analysis if same else analyse(evidence, claim, question, analysis.baseline)
    parent = evidence.parent.name if evidence.parent is not None else None
    names = complete(evidence, [name for name in found.report.runs if name != parent])
    is_better = claim is not None and claim.kind == "better"
    if same and is_better and ruling.verdict == "supported" and ruling.cleared:
        names = [name for name in names if name in ruling.cleared]
    best = find_best(question.sign, found.selection.runs, names)
    return best, None if best is None else found.report.runs[best].mean


def _better_sign(evidence: Evidence, question: Asked) -> int:
    success = success_question(evidence)
    return success.sign if success is not None and success.metric == question.metric else question.sign


def _find_looks(analysis: Analysis) -> Looks | None:
    report, looks = analysis.question.report, analysis.evidence.looks
    known = [looks[sha256] for sha256 in sorted(analysis.report.hashes) if sha256 in looks]
    return known[0] if known and report is not None and report[0] == "test" else None


def _find_noise_floor(report: Measured) -> NoiseFloor | None:
    """The noise floor; None without seed variance. Equal seed means may still differ in single tasks, which counts."""
    runs = list(report.runs.values())
    noise = seed_noise(runs)
    sd = 0.0 if noise is None else math.sqrt(max(noise.between, noise.explained))
    if noise is None or sd <= 0:
        return None
    return NoiseFloor(sd, t_quantile(0.975, noise.df) * sd * math.sqrt(2 / max(run.n_seeds for run in runs)))


def _describe_population(analysis: Analysis) -> Population | None:
    key, report = analysis.question.report, analysis.report
    if key is None:
        return None
    entries = analysis.evidence.metadata.benchmark
    named = [one for one in entries if (one.role or "eval", one.label or "") == key]
    source = next((one.path or one.id or one.name for one in named), None)
    asked = sum(run.n_seeds * (report.n_tasks or 0) for run in report.runs.values())
    samples = sum(report.n_samples.values()) / asked if asked else None
    return Population(source, report.n_tasks, report.n_clusters, samples)


def _summarise_runs(analysis: Analysis) -> list[RunSummary]:
    """Summarise all runs, the best first, and runs without a score last."""
    differing = find_differing_settings(analysis.evidence.runs)
    noise = seed_noise(list(analysis.report.runs.values()))
    found = [_summarise(run, analysis, differing, noise) for run in analysis.evidence.runs]
    base, scores = analysis.baseline, analysis.report.base_model
    if base is not None and base.kind == "model" and scores is not None:
        low, high = _find_interval(UNTRAINED, scores, analysis, None)
        n_tasks = scores.values.shape[1]
        found.append(RunSummary(base.name, scores.mean, low, high, n_tasks=n_tasks, is_baseline=True))
    sign = analysis.question.sign
    return sorted(found, key=lambda run: (run.mean is None, -sign * (run.mean or 0.0), run.name))


def _summarise(
    run: RunEvidence, analysis: Analysis, differing: dict[str, dict[str, Any]], noise: SeedNoise | None
) -> RunSummary:
    report = analysis.report
    scores, chosen_by = report.runs.get(run.name), analysis.selection.runs.get(run.name)
    found = RunSummary(
        run.name,
        n_samples=report.n_samples.get(run.name, 0),
        selection_score=None if analysis.question.shared or chosen_by is None else chosen_by.mean,
        failures=len(run.problems),
        failed_samples=report.failed_samples.get(run.name, 0),
        tokens=sum(known) if (known := [arm.tokens for arm in run.arms if arm.tokens is not None]) else None,
        usd=sum(prices) if (prices := [arm.usd for arm in run.arms if arm.usd is not None]) else None,
        is_baseline=analysis.baseline is not None and analysis.baseline.run == run.name,
        differs={path: one[run.name] for path, one in differing.items() if run.name in one},
    )
    if scores is None:
        return found
    low, high = _find_interval(run.name, scores, analysis, noise)
    own = {"mean": scores.mean, "low": low, "high": high, "n_seeds": scores.n_seeds, "n_tasks": report.n_tasks}
    return replace(found, **own, seeds=list(scores.seeds), by_seed=scores.seed_means.tolist())


def _find_interval(
    name: str, scores: RunScores, analysis: Analysis, noise: SeedNoise | None
) -> tuple[float | None, float | None]:
    """95 % interval of the score of a run, with missing samples taken as wrong at one end and as right at the other."""
    found = contrast([scores], [1.0], noise)
    if found is None:
        return None, None
    width, ends = t_quantile(0.975, round(found.df, 1)) * found.stderr, analysis.report.extremes.get(name, ())
    low, high = min((scores.mean, *ends)) - width, max((scores.mean, *ends)) + width
    return (max(low, 0.0), min(high, 1.0)) if analysis.question.is_rate else (low, high)


def _conclude_nothing(evidence: Evidence, claim: Claim | None) -> Conclusion:
    """The conclusion of a record without the metric of the question."""
    wanted = None if claim is None else claim.metric
    problems = {arm.arm: arm.problem or "it has no result" for arm in evidence.arms if arm.problem or not arm.status}
    reason = f"no run reports {wanted or 'a score'}"
    remedy = "Check the name of the metric, or add a benchmark under metadata.benchmark."
    stopped = evidence.stopped
    if flaws := find_broken_record(evidence):
        reason, remedy = flaws[0]
    elif stopped is not None:
        limit = "deadline" if is_deadline_stop(stopped) else f"budget ({stopped.removeprefix(STOP_PREFIX)})"
        reason = f"stopped by the {limit} before a run was scored"
        remedy = "Raise the limit and run the same command again."
    elif evidence.arms and len(problems) == len(evidence.arms):
        arm, why = next(iter(problems.items()))
        reason = f"no run has a score: none of {pluralise(len(problems), 'arm')} ended with one, first `{arm}`: {why}"
        remedy = "Repair the cause and run again with --resume; there is nothing to conclude before that."
    return Conclusion(
        **_about(evidence),
        verdict="inconclusive" if stopped is not None and not flaws else "invalid",
        summary=f"{'Inconclusive' if stopped is not None and not flaws else 'Invalid'}: {reason}.",
        reasons=[reason],
        metric=wanted,
        not_scored=problems,
        next=[remedy],
    )
