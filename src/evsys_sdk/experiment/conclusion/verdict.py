"""Evidence -> Conclusion. Pure: the same evidence always gives the same conclusion, to the last byte."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..hypothesis import hypothesis_sha256, normalised
from ..statistics.noise import noise_floor
from ..statistics.student_t import t_quantile
from ..statistics.two_level import RunScores, SeedNoise, run_mean, seed_noise
from .advice import next_steps, threats
from .comparison import Analysis, analyse, choose, run_costs
from .evidence import Evidence, RunEvidence
from .looks import Looks
from .model import Comparison, Conclusion, NoiseFloor, RunSummary
from .question import Question, claim_question, find_baseline, success_question
from .rules import Ruling, complete, rule
from .summary import in_one_sentence


def conclude_from(evidence: Evidence) -> Conclusion:
    """What the evidence shows."""
    claim = normalised(evidence.metadata)
    question = claim_question(evidence, claim)
    if question is None:
        return _nothing_scored(evidence, claim)
    baseline = find_baseline(evidence, question, claim["baseline"] if claim else None)
    analysis = analyse(evidence, question, baseline)
    ruling = rule(evidence, claim, analysis)
    best, best_score = _best(evidence, analysis, ruling)
    looks = _looks(evidence, analysis)
    usable = ruling.comparable
    floor = _noise_floor(analysis)
    return Conclusion(
        experiment=evidence.experiment,
        verdict=ruling.verdict,
        summary=in_one_sentence(claim, analysis, ruling, best),
        reasons=list(ruling.reasons),
        hypothesis=claim,
        hypothesis_sha256=hypothesis_sha256(evidence.metadata),
        registered=evidence.registered and evidence.registered_sha256 == hypothesis_sha256(evidence.metadata),
        metric=question.title,
        mode="max" if _better_sign(evidence, question) > 0 else "min",
        selection=None if question.selection is None else "/".join(question.selection),
        report_sha256=next(iter(analysis.report.hashes)) if len(analysis.report.hashes) == 1 else None,
        baseline=None if baseline is None else baseline.name,
        baseline_is=None if baseline is None else baseline.how,
        judged=ruling.judged if claim is not None and usable else None,
        best_arm=best,
        best_score=best_score,
        runs=_summaries(evidence, analysis),
        comparisons=_sorted_comparisons(analysis) if usable else [],
        n_compared=analysis.n_compared if usable else 0,
        noise_floor=floor,
        smallest_detectable=analysis.detectable if usable else None,
        looks=None if looks is None else asdict(looks),
        not_scored=dict(sorted(analysis.report.unusable.items())),
        threats=threats(evidence, claim, analysis, looks),
        next=next_steps(evidence, claim, analysis, ruling),
    )


def _best(evidence: Evidence, analysis: Analysis, ruling: Ruling) -> tuple[str | None, float | None]:
    """The best run by the success metric, chosen on val; its score is the reported one."""
    if not ruling.comparable:
        return None, None
    question = success_question(evidence) or analysis.question
    same = question == analysis.question
    found = analysis if same else analyse(evidence, question, analysis.baseline)
    if same and ruling.verdict == "supported" and ruling.judged is not None:
        return ruling.judged, found.report.runs[ruling.judged].mean
    names = complete(evidence, [name for name in found.report.runs if name in found.selection.runs])
    best = choose(found.selection, names, question.sign, run_costs(evidence))
    return best, None if best is None else found.report.runs[best].mean


def _better_sign(evidence: Evidence, question: Question) -> int:
    success = success_question(evidence)
    return success.sign if success is not None and success.metric == question.metric else question.sign


def _looks(evidence: Evidence, analysis: Analysis) -> Looks | None:
    if analysis.question.report is None or analysis.question.report[0] != "test":
        return None
    found = [evidence.looks[sha256] for sha256 in sorted(analysis.report.hashes) if sha256 in evidence.looks]
    return found[0] if found else None


def _noise_floor(analysis: Analysis) -> NoiseFloor | None:
    runs = list(analysis.report.runs.values())
    base = analysis.baseline_scores
    seeds = max((run.n_seeds for run in runs), default=1)
    floor = noise_floor(base, seed_noise(runs), seeds=seeds)
    if floor is None:
        return None
    name = analysis.baseline.name if floor.of_baseline and analysis.baseline is not None else "all runs"
    return NoiseFloor(floor.seed_sd, floor.difference, name)


def _summaries(evidence: Evidence, analysis: Analysis) -> list[RunSummary]:
    """All runs, the best first, those without a score last."""
    noise = seed_noise(list(analysis.report.runs.values()))
    found = [_summary(run, analysis, noise) for run in evidence.runs]
    base = analysis.baseline
    if base is not None and base.kind == "model" and analysis.report.base_model is not None:
        found.append(_model_summary(base.name, analysis.report.base_model, analysis.question))
    sign = analysis.question.sign
    return sorted(found, key=lambda run: (run.mean is None, -sign * (run.mean or 0.0), run.name))


def _summary(run: RunEvidence, analysis: Analysis, noise: SeedNoise | None) -> RunSummary:
    report = analysis.report
    scores, chosen_by = report.runs.get(run.name), analysis.selection.runs.get(run.name)
    low, high = _interval(scores, noise, analysis.question)
    variance = scores.seed_variance if scores is not None else None
    usd, tokens = [arm.usd for arm in run.arms], [arm.tokens for arm in run.arms]
    return RunSummary(
        name=run.name,
        mean=scores.mean if scores is not None else None,
        low=low,
        high=high,
        seed_sd=None if variance is None else variance**0.5,
        n_seeds=scores.n_seeds if scores is not None else 0,
        n_tasks=report.n_tasks if scores is not None else None,
        n_samples=report.n_samples.get(run.name, 0),
        selection_score=None if analysis.question.shared or chosen_by is None else chosen_by.mean,
        failures=len(run.problems),
        failed_samples=report.failed_samples.get(run.name, 0),
        tokens=sum(known) if (known := [count for count in tokens if count is not None]) else None,
        usd=sum(prices) if (prices := [price for price in usd if price is not None]) else None,
        is_baseline=analysis.baseline is not None
        and analysis.baseline.kind == "run"
        and analysis.baseline.name == run.name,
    )


def _model_summary(name: str, scores: RunScores, question: Question) -> RunSummary:
    low, high = _interval(scores, None, question)
    n_tasks = scores.values.shape[1]
    return RunSummary(name, scores.mean, low, high, None, 0, n_tasks, 0, None, 0, 0, None, None, is_baseline=True)


def _interval(
    scores: RunScores | None, noise: SeedNoise | None, question: Question
) -> tuple[float | None, float | None]:
    found = None if scores is None else run_mean(scores, noise)
    if scores is None or found is None:
        return None, None
    width = t_quantile(0.975, found[1]) * found[0]
    low, high = scores.mean - width, scores.mean + width
    return (max(low, 0.0), min(high, 1.0)) if question.is_rate else (low, high)


def _sorted_comparisons(analysis: Analysis) -> list[Comparison]:
    sign = analysis.question.sign
    return sorted(analysis.comparisons, key=lambda one: (-sign * one.difference, one.run))


def _nothing_scored(evidence: Evidence, claim: dict[str, Any] | None) -> Conclusion:
    """A record without any number that could answer the question."""
    wanted = (claim or {}).get("metric")
    what = f"no run reports {wanted}" if wanted else "no run reports a score"
    problems = {
        arm.arm: arm.problem or "it has no result" for arm in evidence.arms if arm.problem or arm.status is None
    }
    reasons = [what if evidence.invalidated is None else f"the experiment was invalidated: {evidence.invalidated}"]
    sha256 = hypothesis_sha256(evidence.metadata)
    remedy = "Check the name of the metric, or add a benchmark under metadata.benchmark."
    return Conclusion(
        experiment=evidence.experiment,
        verdict="invalid",
        summary=f"Invalid: {reasons[0]}.",
        reasons=reasons,
        hypothesis=claim,
        hypothesis_sha256=sha256,
        registered=evidence.registered and evidence.registered_sha256 == sha256,
        metric=wanted,
        mode=None,
        selection=None,
        report_sha256=None,
        baseline=None,
        baseline_is=None,
        judged=None,
        best_arm=None,
        best_score=None,
        runs=[],
        comparisons=[],
        n_compared=0,
        noise_floor=None,
        smallest_detectable=None,
        looks=None,
        not_scored=problems,
        threats=[],
        next=[remedy],
    )
