"""Interim analyses: decide a claim before all seeds are trained, or stop for futility.

An experiment stops for futility if its last analysis is unlikely to support the claim.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from ..statistics.student_t import chi2_quantile
from .comparison import Analysis, complete
from .model import Conclusion, Sequential, Verdict

DECIDED, FUTILE, BROKEN = "decided", "futile", "seeds are missing"
"""Outcomes before the last interim analysis."""
FUTILITY_THRESHOLD = 0.05
"""Probability of support at the last analysis below which no more seeds are trained."""
_CAUTION = 0.1
"""Quantile for the upper confidence limit of the seed variance, because few seeds may agree by chance."""


def judge_interim(conclusion: Conclusion) -> dict[str, Any]:
    """Decide from a conclusion at an interim analysis whether the experiment ends; the fields for its journal."""
    found = conclusion.sequential
    if found is None:  # no run has a score
        return {"verdict": conclusion.verdict, "ends": True, "why": conclusion.summary, "error": 0.0, "chance": None}
    chance = "unknown" if found.chance is None else f"{100 * found.chance:.3g} %"
    reasons = {
        DECIDED: conclusion.summary,
        FUTILE: f"chance of support with the seeds that are left: {chance}, so they are not trained",
        BROKEN: "seeds without a score keep it from being decided; repair them and continue with --resume",
    }
    return {
        "verdict": conclusion.verdict,
        "ends": found.outcome in reasons,
        "why": reasons.get(found.outcome, f"not decided; chance of support at the last analysis: {chance}"),
        "error": found.error,
        "chance": found.chance,
    }


def tell_looks(analysis: Analysis, verdict: Verdict) -> Sequential | None:
    """Outcome and error rate at the interim analysis reached; None if none was planned, or nothing is scored."""
    evidence, baseline = analysis.evidence, analysis.baseline
    if not evidence.interim or not analysis.report.runs:
        return None
    looks, at = list(evidence.interim), analysis.level.look
    seeds = max(run.n_seeds for run in analysis.report.runs.values())
    chance = chance_of_support(analysis)
    # Without the baseline or any whole candidate, no further seed changes the verdict.
    is_broken = baseline is not None and (
        not complete(evidence, analysis.candidates) or (baseline.run and not complete(evidence, [baseline.run]))
    )
    if seeds >= looks[-1]:
        outcome = "all seeds were needed"
    elif seeds == looks[at] and verdict in ("supported", "refuted"):
        outcome = DECIDED
    elif is_broken:
        outcome = BROKEN
    elif seeds == looks[at] and chance is not None and chance < FUTILITY_THRESHOLD:
        outcome = FUTILE
    else:
        outcome = "aborted"
    return Sequential(looks, at + 1, seeds, outcome, analysis.level.here, chance)


def chance_of_support(analysis: Analysis) -> float | None:
    """Probability that the last analysis supports the claim, for the most promising run; None if unknown.

    The difference to the baseline is expected to stay at its current value; the variance of the remaining seeds is
    estimated from the trained ones. Stopping for futility spends no error rate.
    """
    claim, differences, last = analysis.claim, analysis.differences, analysis.level.last_seeds
    noise, prospect = None if differences is None else differences.noise, analysis.prospect
    if claim is None or claim.kind == "trend" or not last or differences is None or noise is None or prospect is None:
        return None
    seeds = np.array([run.n_seeds for run in differences.candidates], dtype=float)
    base = differences.baseline.n_seeds if differences.baseline.trained else 0
    if not (seeds < last).any():
        return None
    shares, last_shares = 1 / seeds + (1 / base if base else 0.0), (2 if base else 1) / last
    ahead = analysis.question.sign * np.array([one.value for one in differences.estimates]) - claim.threshold
    at_end = math.sqrt(prospect.interaction + max(noise.between, noise.explained) * last_shares)
    raised = max(noise.between * noise.df / chi2_quantile(_CAUTION, noise.df), noise.explained)
    # The floor avoids a division by zero for runs that have all their seeds.
    still_open = np.sqrt(np.maximum(raised * (shares - last_shares), 1e-300))
    distance = (ahead - prospect.critical(last, error=analysis.level.last) * at_end) / still_open
    return NormalDist().cdf(min(max(float(distance.max()), -38.0), 38.0))
