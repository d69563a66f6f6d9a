"""Draw a conclusion from evidence. Deterministic: the same evidence always gives the same conclusion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..hypothesis import find_claim, hypothesis_sha256, normalise_hypothesis
from ..statistics.student_t import t_quantile
from ..statistics.two_level import RunScores, SeedNoise, contrast, seed_noise
from .advice import list_threats, next_steps
from .comparison import Analysis, analyse, complete, find_best
from .evidence import Evidence, Looks, RunEvidence, find_differing_settings
from .interim import tell_looks
from .measured import Measured
from .model import Conclusion, NoiseFloor, Population, RunSummary
from .question import Asked, claim_question, find_baseline, success_question
from .rules import Ruling, rule
from .summary import in_one_sentence
from .trend import find_trend


def conclude_from(evidence: Evidence) -> Conclusion:
    """Draw the conclusion."""
    claim, sha256 = find_claim(evidence.metadata), hypothesis_sha256(evidence.metadata)
    question = claim_question(evidence, claim)
    baseline = None if claim is not None and claim.kind == "trend" else find_baseline(evidence, question, claim)
    parent = evidence.parent
    if parent is not None and baseline is not None and baseline.name == parent.name and not evidence.run(parent.name):
        evidence = replace(evidence, runs=[*evidence.runs, parent])
    analysis = analyse(evidence, claim, question, baseline)
    trend = find_trend(analysis)
    ruling = rule(analysis, trend)
    comparable = ruling.comparable
    success = success_question(evidence) or question
    best, best_score = _find_best(analysis, success, ruling) if comparable else (None, None)
    sequential = tell_looks(analysis, ruling.verdict)
    sign = success.sign if success.metric == question.metric else question.sign
    level, hashes, validated = analysis.level.trial, analysis.report.hashes, analysis.preferred is not None
    comparisons = sorted(analysis.comparisons, key=lambda one: (-question.sign * one.difference, one.run))
    return Conclusion(
        experiment=evidence.experiment,
        verdict=ruling.verdict,
        summary=in_one_sentence(analysis, ruling, best, trend),
        reasons=list(ruling.reasons),
        hypothesis=normalise_hypothesis(evidence.metadata),
        hypothesis_sha256=sha256,
        registered=evidence.registered and evidence.registered_sha256 == sha256,
        metric=question.title,
        mode="max" if sign > 0 else "min",
        selection=None if question.selection is None else "/".join(question.selection),
        report_sha256=next(iter(hashes)) if len(hashes) == 1 else None,
        baseline=None if baseline is None else baseline.name,
        baseline_is=None if baseline is None else baseline.how,
        judged=ruling.judged if comparable and claim is not None else None,
        best_arm=best,
        best_score=best_score,
        runs=_summarise_runs(analysis),
        comparisons=comparisons if comparable else [],
        noise_floor=_find_noise_floor(analysis.report),
        smallest_detectable=analysis.detectable if comparable else None,
        looks=_find_looks(analysis),
        not_scored=dict(sorted(analysis.report.unusable.items())),
        threats=list_threats(analysis),
        next=next_steps(analysis, ruling, sequential),
        rule=claim and claim.rule(question.title, validated=validated, error=level, looks=evidence.interim),
        error_rate=None if claim is None else level,
        attempt=evidence.attempt,
        population=_describe_population(analysis) if comparable else None,
        flags=list(evidence.flags),
        backend=evidence.backend,
        trend=trend if comparable else None,
        identity=dict(evidence.identity),
        deviations=list(evidence.deviations),
        sequential=sequential,
    )


def _find_best(analysis: Analysis, question: Asked, ruling: Ruling) -> tuple[str | None, float | None]:
    """The best run by the success metric on the selection set, and its reported score."""
    evidence, claim = analysis.evidence, analysis.claim
    same = question == analysis.question
    found = analysis if same else analyse(evidence, claim, question, analysis.baseline)
    parent = evidence.parent.name if evidence.parent is not None else None
    names = complete(evidence, [name for name in found.report.runs if name != parent])
    if same and claim is not None and claim.kind == "better" and ruling.verdict == "supported":
        names = [name for name in names if name in ruling.cleared]
    best = find_best(question.sign, found.selection.runs, names)
    return best, None if best is None else found.report.runs[best].mean


def _find_looks(analysis: Analysis) -> Looks | None:
    report, looks = analysis.question.report, analysis.evidence.looks
    known = (looks[sha256] for sha256 in sorted(analysis.report.hashes) if sha256 in looks)
    return next(known, None) if report is not None and report[0] == "test" else None


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
    named = (one for one in analysis.evidence.metadata.benchmark if (one.role or "eval", one.label or "") == key)
    source = next((one.path or one.id or one.name for one in named), None)
    answered = sum(run.n_seeds for run in report.runs.values()) * (report.n_tasks or 0)
    return Population(source, report.n_tasks, report.n_clusters, report.n_samples / answered if answered else None)


def _summarise_runs(analysis: Analysis) -> list[RunSummary]:
    """Summarise all runs, the best first, and runs without a score last."""
    report, base = analysis.report, analysis.baseline
    differing, noise = find_differing_settings(analysis.evidence.runs), seed_noise(list(report.runs.values()))
    found = [_summarise(run, analysis, differing, noise) for run in analysis.evidence.runs]
    if base is not None and base.kind == "model" and report.base_model is not None:
        own = _describe_scores(report.base_model, analysis, None)
        found.append(RunSummary(base.name, **own, is_baseline=True))
    sign = analysis.question.sign
    return sorted(found, key=lambda run: (run.mean is None, -sign * (run.mean or 0.0), run.name))


def _summarise(
    run: RunEvidence, analysis: Analysis, differing: dict[str, dict[str, Any]], noise: SeedNoise | None
) -> RunSummary:
    scores, chosen_by = analysis.report.runs.get(run.name), analysis.selection.runs.get(run.name)
    own = {} if scores is None else _describe_scores(scores, analysis, noise)
    if scores is not None:
        own |= {"n_seeds": scores.n_seeds, "seeds": list(scores.seeds), "by_seed": scores.seed_means.tolist()}
    return RunSummary(
        run.name,
        selection_score=None if analysis.question.shared or chosen_by is None else chosen_by.mean,
        failures=len(run.problems),
        failed_samples=analysis.report.failed_samples.get(run.name, 0),
        tokens=_add(arm.tokens for arm in run.arms),
        usd=_add(arm.usd for arm in run.arms),
        is_baseline=analysis.baseline is not None and analysis.baseline.run == run.name,
        differs={path: one[run.name] for path, one in differing.items() if run.name in one},
        **own,
    )


def _add[N: (int, float)](values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _describe_scores(scores: RunScores, analysis: Analysis, noise: SeedNoise | None) -> dict[str, Any]:
    """Mean of a run and its 95 % interval, with missing samples as wrong at one end and as right at the other."""
    known: dict[str, Any] = {"mean": scores.mean, "n_tasks": analysis.report.n_tasks}
    if (found := contrast([scores], [1.0], noise)) is None:
        return known
    width, (least, most) = t_quantile(0.975, round(found.df, 1)) * found.stderr, analysis.question.limits
    return {**known, "low": max(found.low - width, least), "high": min(found.high + width, most)}
