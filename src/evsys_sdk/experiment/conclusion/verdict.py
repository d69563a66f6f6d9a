"""Evidence -> Conclusion. Pure: the same evidence always gives the same conclusion, to the last byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ...training.callback import is_deadline_stop
from ..hypothesis import Claim, find_claim, hypothesis_sha256, normalise_hypothesis
from ..statistics.luck import noise_floor
from ..statistics.student_t import t_quantile
from ..statistics.two_level import RunScores, SeedNoise, run_mean, seed_noise
from .advice import find_extremes, next_steps, threats
from .comparison import Analysis, analyse, attempt_level, complete, error_rate, run_costs
from .evidence import Evidence, Looks, RunEvidence, find_differing_settings
from .interim import tell_looks
from .model import Comparison, Conclusion, NoiseFloor, Population, RunSummary, Verdict
from .question import Asked, Baseline, claim_question, find_baseline, success_question
from .rules import Ruling, rule
from .summary import in_one_sentence, pluralise
from .trend import find_trend


def conclude_from(evidence: Evidence) -> Conclusion:
    """What the evidence shows."""
    claim = find_claim(evidence.metadata)
    question = claim_question(evidence, claim)
    if question is None:
        return _conclude_nothing(evidence, claim)
    is_trend = claim is not None and claim.kind == "trend"
    baseline = None if is_trend else find_baseline(evidence, question, claim)
    evidence = _with_parent(evidence, baseline)
    analysis = analyse(evidence, question, baseline)
    error = error_rate(evidence, analysis.report)
    trend = find_trend(evidence, claim, analysis.report, error) if claim is not None and is_trend else None
    ruling = rule(evidence, claim, analysis, trend)
    best, best_score = _best(evidence, analysis, ruling)
    looks = _looks(evidence, analysis)
    usable = ruling.comparable
    extremes = [] if ruling.verdict == "supported" else find_extremes(claim, analysis)
    shown = None if trend is None else trend.trend
    validated = analysis.preferred is not None
    level, looked = attempt_level(evidence), sorted(evidence.interim)
    sequential = tell_looks(evidence, claim, analysis, ruling.verdict)
    return Conclusion(
        **_about(evidence, claim),
        verdict=ruling.verdict,
        summary=in_one_sentence(evidence, claim, analysis, ruling, best, shown, sequential),
        reasons=list(ruling.reasons),
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
        comparisons=_sort_comparisons(analysis) if usable else [],
        n_compared=analysis.n_compared if usable else 0,
        noise_floor=_noise_floor(analysis),
        smallest_detectable=analysis.detectable if usable else None,
        looks=None if looks is None else asdict(looks),
        not_scored=dict(sorted(analysis.report.unusable.items())),
        threats=threats(evidence, claim, analysis, looks),
        next=next_steps(evidence, claim, analysis, ruling, extremes, sequential),
        rule=None if claim is None else claim.rule(question.title, validated=validated, error=level, looks=looked),
        error_rate=None if claim is None else level,
        population=_population(evidence, analysis) if usable else None,
        shared_seeds=_share_seeds(analysis),
        extremes=extremes,
        trend=shown if usable else None,
        sequential=sequential,
    )


def _about(evidence: Evidence, claim: Claim | None) -> dict[str, Any]:
    """What a conclusion says whatever was found."""
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
    """The evidence with the run that the experiment goes on from, where that is what runs are compared with."""
    parent = evidence.parent
    if parent is None or baseline is None or baseline.name != parent.name or evidence.run(parent.name) is not None:
        return evidence
    return replace(evidence, runs=[*evidence.runs, parent])


def _best(evidence: Evidence, analysis: Analysis, ruling: Ruling) -> tuple[str | None, float | None]:
    """The best run by the success metric, chosen on val; its score is the reported one."""
    if not ruling.comparable:
        return None, None
    question = success_question(evidence) or analysis.question
    same = question == analysis.question
    found = analysis if same else analyse(evidence, question, analysis.baseline)
    parent = evidence.parent.name if evidence.parent is not None else None
    names = complete(evidence, [name for name in found.report.runs if name in found.selection.runs and name != parent])
    claim = find_claim(evidence.metadata)
    is_better = claim is not None and claim.kind == "better"
    if same and is_better and ruling.verdict == "supported" and ruling.cleared:
        names = [name for name in names if name in ruling.cleared]
    chosen = found.selection.runs
    best = max(sorted(names), key=lambda name: question.sign * chosen[name].mean, default=None)
    return best, None if best is None else found.report.runs[best].mean


def _better_sign(evidence: Evidence, question: Asked) -> int:
    success = success_question(evidence)
    return success.sign if success is not None and success.metric == question.metric else question.sign


def _looks(evidence: Evidence, analysis: Analysis) -> Looks | None:
    if analysis.question.report is None or analysis.question.report[0] != "test":
        return None
    found = [evidence.looks[sha256] for sha256 in sorted(analysis.report.hashes) if sha256 in evidence.looks]
    return found[0] if found else None


def _noise_floor(analysis: Analysis) -> NoiseFloor | None:
    runs = list(analysis.report.runs.values())
    seeds = max((run.n_seeds for run in runs), default=1)
    floor = noise_floor(_noise(analysis), seeds=seeds)
    if floor is None:
        return None
    return NoiseFloor(floor.seed_sd, floor.difference, "all runs")


def _noise(analysis: Analysis) -> SeedNoise | None:
    return seed_noise(list(analysis.report.runs.values()))


def _population(evidence: Evidence, analysis: Analysis) -> Population | None:
    key, report = analysis.question.report, analysis.report
    if key is None:
        return None
    entries = [entry for entry in evidence.metadata.benchmark if (entry.role or "eval", entry.label or "") == key]
    source = next((entry.path or entry.id or entry.name for entry in entries), None)
    asked = sum(run.n_seeds * (report.n_tasks or 0) for run in report.runs.values())
    samples = sum(report.n_samples.values()) / asked if asked else None
    return Population(source, report.n_tasks, report.n_clusters, samples, report.dropped_tasks)


def _share_seeds(analysis: Analysis) -> bool:
    seeds = {run.seeds for run in analysis.report.runs.values()}
    return len(analysis.report.runs) > 1 and len(seeds) == 1


def _summaries(evidence: Evidence, analysis: Analysis) -> list[RunSummary]:
    """All runs, the best first, those without a score last."""
    noise = _noise(analysis)
    differing = find_differing_settings(evidence.runs)
    cost = run_costs(evidence)
    found = [_summary(run, analysis, noise, differing.get(run.name, {}), cost(run.name)) for run in evidence.runs]
    base = analysis.baseline
    if base is not None and base.kind == "model" and analysis.report.base_model is not None:
        found.append(_model_summary(base.name, analysis.report.base_model, analysis.question))
    sign = analysis.question.sign
    return sorted(found, key=lambda run: (run.mean is None, -sign * (run.mean or 0.0), run.name))


def _summary(
    run: RunEvidence,
    analysis: Analysis,
    noise: SeedNoise | None,
    differs: dict[str, Any],
    cost: Sequence[float | None],
) -> RunSummary:
    report = analysis.report
    scores, chosen_by = report.runs.get(run.name), analysis.selection.runs.get(run.name)
    low, high = _bound_interval(run.name, analysis, noise)
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
        seeds=[] if scores is None else list(scores.seeds),
        by_seed=[] if scores is None else scores.seed_means.tolist(),
        differs=differs,
        tokens_per_arm=cost[1],
        usd_per_arm=cost[0],
    )


def _model_summary(name: str, scores: RunScores, question: Asked) -> RunSummary:
    low, high = _interval(scores, None, question)
    n_tasks = scores.values.shape[1]
    return RunSummary(name, scores.mean, low, high, None, 0, n_tasks, 0, None, 0, 0, None, None, is_baseline=True)


def _bound_interval(name: str, analysis: Analysis, noise: SeedNoise | None) -> tuple[float | None, float | None]:
    """Of the score of a run; where samples are missing, from all of them wrong to all of them right."""
    tables = [table for table in (analysis.report.runs, analysis.report.lowest, analysis.report.highest) if table]
    found = [_interval(table.get(name), noise, analysis.question) for table in tables]
    lows, highs = [low for low, _ in found if low is not None], [high for _, high in found if high is not None]
    return min(lows, default=None), max(highs, default=None)


def _interval(scores: RunScores | None, noise: SeedNoise | None, question: Asked) -> tuple[float | None, float | None]:
    found = None if scores is None else run_mean(scores, noise)
    if scores is None or found is None:
        return None, None
    width = t_quantile(0.975, round(found[1], 1)) * found[0]
    low, high = scores.mean - width, scores.mean + width
    return (max(low, 0.0), min(high, 1.0)) if question.is_rate else (low, high)


def _sort_comparisons(analysis: Analysis) -> list[Comparison]:
    sign = analysis.question.sign
    return sorted(analysis.comparisons, key=lambda one: (-sign * one.difference, one.run))


def _conclude_nothing(evidence: Evidence, claim: Claim | None) -> Conclusion:
    """A record without any number that could answer the question."""
    wanted = None if claim is None else claim.metric
    problems = {
        arm.arm: arm.problem or "it has no result" for arm in evidence.arms if arm.problem or arm.status is None
    }
    verdict: Verdict = "invalid"
    broken = bool(evidence.arms) and len(problems) == len(evidence.arms)
    if evidence.invalidated is not None:
        reason, remedy = f"the experiment was invalidated: {evidence.invalidated}", "Run it again without that flaw."
    elif evidence.contradicted is not None:
        reason, remedy = f"the audit found a contradiction ({evidence.contradicted})", "See `evsys audit`."
    elif is_deadline_stop(evidence.stopped):
        verdict, reason = "inconclusive", "stopped by the deadline before a run was scored"
        remedy = "Allow more time and run the same command again."
    elif broken:
        arm, why = next(iter(problems.items()))
        reason = f"no run has a score: none of {pluralise(len(problems), 'arm')} ended with one, first `{arm}`: {why}"
        remedy = "Repair the cause and run again with --resume; there is nothing to conclude before that."
    else:
        reason = f"no run reports {wanted or 'a score'}"
        remedy = "Check the name of the metric, or add a benchmark under metadata.benchmark."
    return Conclusion(
        **_about(evidence, claim),
        verdict=verdict,
        summary=f"{verdict.capitalize()}: {reason}.",
        reasons=[reason],
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
