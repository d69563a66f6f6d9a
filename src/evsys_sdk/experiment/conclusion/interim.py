"""A look before the last seed: what is decided, and whether more seeds could decide what is not.

A claim is given up where the chance that its last look supports it is small.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ..statistics.student_t import chi2_quantile
from .comparison import Analysis, complete
from .model import Conclusion, Sequential, Verdict
from .summary import number

DECIDED, FUTILE, BROKEN = "decided", "futile", "seeds are missing"
"""How it may end before its last look."""
FUTILITY_THRESHOLD = 0.05
"""The chance to be supported at last, below which an experiment is not worth its other seeds."""
_CAUTION = 0.1
"""The seed variance is taken from the upper end of its interval: few seeds that agree promise nothing."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at a look."""

    verdict: Verdict
    ends: bool
    """Whether no more seeds are trained."""
    why: str
    error: float
    """At which this look was tested."""
    chance: float | None = None
    """Of being supported at the last look; None where that is not known."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge_interim(conclusion: Conclusion) -> Look:
    """Whether a conclusion from the seeds up to a look is the end of it."""
    found = conclusion.sequential
    if found is None:  # nothing has a score
        return Look(conclusion.verdict, True, conclusion.summary, 0.0)
    chance = "" if found.chance is None else _percent(found.chance)
    says = {
        DECIDED: conclusion.summary,
        FUTILE: f"{chance} chance that the seeds which are left would support the claim, so they are not trained",
        BROKEN: "seeds without a score keep it from being decided; repair them and continue with --resume",
    }
    why = says.get(found.outcome, f"not decided; {chance} chance to be supported at last" if chance else "not decided")
    return Look(conclusion.verdict, found.outcome in says, why, found.error, found.chance)


def tell_looks(analysis: Analysis, verdict: Verdict) -> Sequential | None:
    """How far the planned looks went, and what was saved by that; None where there was to be one look."""
    evidence = analysis.evidence
    if not evidence.interim:
        return None
    looks, at = sorted(evidence.interim), analysis.level.look
    seeds = max((run.n_seeds for run in analysis.report.runs.values()), default=0)
    chance = chance_of_support(analysis)
    if seeds >= looks[-1]:
        outcome = "all seeds were needed"
    elif seeds == looks[at] and verdict in ("supported", "refuted"):
        outcome = DECIDED
    elif _is_broken(analysis):
        outcome = BROKEN
    elif seeds == looks[at] and chance is not None and chance < FUTILITY_THRESHOLD:
        outcome = FUTILE
    else:
        outcome = "aborted"
    runs = [run for run in evidence.runs if run is not evidence.parent]
    trained = sum(arm.status is not None for run in runs for arm in run.arms)
    return Sequential(looks, at + 1, seeds, outcome, analysis.level.here, trained, looks[-1] * len(runs), chance)


def chance_of_support(analysis: Analysis) -> float | None:
    """How often the last look would support the claim, for the run that stands the best chance; None: not known.

    Between two looks the difference of two runs stays about where it is; how far the seeds that are left may still
    move it is known from those that are there. Giving up makes no claim true: it costs no error.
    """
    claim, differences, last = analysis.claim, analysis.differences, analysis.level.last_seeds
    noise, prospect = None if differences is None else differences.noise, analysis.prospect
    if claim is None or claim.kind == "trend" or not last or differences is None or noise is None or prospect is None:
        return None
    seeds, base = np.array(differences.seeds, dtype=float), differences.baseline_seeds
    if not (seeds < last).any():
        return None
    shares, last_shares = 1 / seeds + (1 / base if base else 0.0), (2 if base else 1) / last
    ahead = analysis.question.sign * np.array([one.value for one in differences.estimates]) - claim.threshold
    at_end = math.sqrt(prospect.interaction + max(noise.between, noise.explained) * last_shares)
    raised = max(noise.between * noise.df / chi2_quantile(_CAUTION, noise.df), noise.explained)
    # Nothing is open any more at the last look itself, where this divides.
    still_open = np.sqrt(np.maximum(raised * (shares - last_shares), 1e-300))
    distance = (ahead - prospect.critical(last, error=analysis.level.last) * at_end) / still_open
    return NormalDist().cdf(min(max(float(distance.max()), -38.0), 38.0))


def _is_broken(analysis: Analysis) -> bool:
    """Whether no further seed could lead to a verdict before something is repaired."""
    evidence, baseline = analysis.evidence, analysis.baseline
    if baseline is not None and baseline.run and not complete(evidence, [baseline.name]):
        return True
    return not analysis.report.runs or (baseline is not None and not complete(evidence, analysis.candidates))


def _percent(share: float) -> str:
    return f"{number(100 * share)} %" if share >= 0.0001 else "no"
