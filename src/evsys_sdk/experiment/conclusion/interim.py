"""A look before the last seed: what is decided, and whether more seeds could decide what is not.

A claim is given up where the chance that its last look supports it is small (`statistics.stopping`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ..hypothesis import Claim
from ..statistics.stopping import FUTILITY_THRESHOLD, distance_to_support
from .comparison import Analysis, complete, error_rate, find_look, look_levels
from .evidence import Evidence
from .model import Conclusion, Sequential, Verdict
from .summary import number

DECIDED, FUTILE, BROKEN = "decided", "futile", "seeds are missing"
"""How it may end before its last look."""


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
        BROKEN: "seeds without a score keep it from being decided; repair them and go on with --resume",
    }
    why = says.get(found.outcome, f"not decided; {chance} chance to be supported at last" if chance else "not decided")
    return Look(conclusion.verdict, found.outcome in says, why, found.error, found.chance)


def tell_looks(evidence: Evidence, claim: Claim | None, analysis: Analysis, verdict: Verdict) -> Sequential | None:
    """How far the planned looks went, and what was saved by that; None where there was to be one look."""
    if not evidence.interim:
        return None
    looks = sorted(evidence.interim)
    at = find_look(evidence, analysis.report)
    seeds = max((run.n_seeds for run in analysis.report.runs.values()), default=0)
    chance = None if claim is None else chance_of_support(evidence, claim, analysis)
    if seeds >= looks[-1]:
        outcome = "all seeds were needed"
    elif seeds == looks[at] and verdict in ("supported", "refuted"):
        outcome = DECIDED
    elif _is_broken(evidence, analysis):
        outcome = BROKEN
    elif seeds == looks[at] and chance is not None and chance < FUTILITY_THRESHOLD:
        outcome = FUTILE
    else:
        outcome = "broken off"
    runs = [run for run in evidence.runs if run is not evidence.parent]
    return Sequential(
        looks=looks,
        look=at + 1,
        seeds=seeds,
        outcome=outcome,
        error=error_rate(evidence, analysis.report),
        arms=sum(arm.status is not None for run in runs for arm in run.arms),
        arms_planned=looks[-1] * len(runs),
        chance=chance,
    )


def chance_of_support(evidence: Evidence, claim: Claim, analysis: Analysis) -> float | None:
    """How often the last look would support the claim, for the run that stands the best chance; None: not known."""
    differences, prospect = analysis.differences, analysis.prospect
    if claim.kind == "trend" or differences is None or prospect is None or len(evidence.interim) < 2:
        return None
    noise, last = differences.noise, max(evidence.interim)
    seeds, base = np.array(differences.seeds, dtype=float), differences.baseline_seeds
    if noise is None or not (seeds < last).any():
        return None
    distance = distance_to_support(
        analysis.question.sign * differences.estimates - claim.threshold,
        critical=prospect.critical(last, error=look_levels(evidence)[-1]),
        interaction=prospect.interaction,
        between=np.array(noise.between),
        explained=noise.explained,
        df=noise.df,
        shares=1 / seeds + (1 / base if base else 0.0),
        last_shares=(2 if base else 1) / last,
    )
    return NormalDist().cdf(min(max(float(distance.max()), -38.0), 38.0))


def _is_broken(evidence: Evidence, analysis: Analysis) -> bool:
    """Whether no further seed could lead to a verdict before something is repaired."""
    baseline = analysis.baseline
    if baseline is not None and baseline.kind == "run" and not complete(evidence, [baseline.name]):
        return True
    return not analysis.report.runs or (baseline is not None and not complete(evidence, analysis.candidates))


def _percent(share: float) -> str:
    return f"{number(100 * share)} %" if share >= 0.0001 else "no"
