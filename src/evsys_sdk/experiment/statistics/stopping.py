"""When more seeds are not worth their price: the chance of a last look, and how many seeds an experiment takes.

Between two looks at growing numbers of seeds the difference of two runs stays about where it is; how far the seeds that
are left may still move it is known from those that are there. Giving up makes no claim true: it costs no error.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from .attempts import FIRST_ERROR, look_errors
from .power import Prospect
from .student_t import chi2_quantile
from .two_level import FloatArray

FUTILITY_THRESHOLD = 0.05
"""The chance to be supported at last, below which an experiment is not worth its other seeds."""
_CAUTION = 0.1
"""The noise of seeds is taken from the upper end of its own uncertainty: few seeds that agree promise nothing."""
_MOST_WORLDS, _FEWEST_WORLDS, _MOST_DRAWS = 2_000, 100, 4_000_000
_SEED = 20_260_101


def distance_to_support(
    ahead: FloatArray,
    *,
    critical: float,
    interaction: float,
    between: FloatArray,
    explained: float,
    df: float,
    shares: FloatArray,
    last_shares: float,
) -> FloatArray:
    """How far differences lie from what the last look needs, in what the seeds that are left may move them.

    `ahead` is what a difference has beyond the claimed limit; `shares` is what seeds divide by now, on both sides, and
    `last_shares` at the last look. The chance to be supported there is that of a standard normal below the answer.
    """
    at_end = np.sqrt(interaction + np.maximum(between, explained) * last_shares)
    raised = np.maximum(between * df / chi2_quantile(_CAUTION, df), explained)
    # Nothing is open any more at the last look itself, where this divides.
    still_open = np.sqrt(np.maximum(raised * (shares - last_shares), 1e-300))
    return (ahead - critical * at_end) / still_open


@lru_cache(maxsize=64)
def expected_seeds(prospect: Prospect, looks: tuple[int, ...], effect: float, *, error: float = FIRST_ERROR) -> float:
    """Seeds a run that an experiment takes until it is decided, on average, if one run is better by `effect`."""
    levels = look_errors(tuple(count / looks[-1] for count in looks), error)
    random = np.random.default_rng(_SEED)
    unit, sides, size = prospect.training + prospect.answers, 1 if prospect.frozen_baseline else 2, prospect.candidates
    last = prospect.critical(looks[-1], error=levels[-1])
    worlds = min(_MOST_WORLDS, max(_FEWEST_WORLDS, _MOST_DRAWS // ((size + 1) * looks[-1])))
    suited = random.standard_normal((worlds, size)) * math.sqrt(prospect.interaction)
    scores = random.standard_normal((worlds, size + 1, looks[-1])) * math.sqrt(unit)
    scores[:, 0] *= sides - 1  # a model as it is has no luck of training
    running, total = np.ones(worlds, dtype=bool), 0.0
    for seeds, level in zip(looks, levels, strict=True):
        means = scores[:, :, :seeds].mean(axis=2)
        ahead = means[:, 1:] - means[:, :1] + suited
        ahead[:, 0] += effect
        # Without the baseline where it is a model as it is, whose zeros would pass for seeds that agree.
        own = scores[:, 2 - sides :, :seeds].var(axis=2, ddof=1)
        between, df = own.mean(axis=1), own.shape[1] * (seeds - 1)
        width = prospect.critical(seeds, error=level) * np.sqrt(prospect.interaction + between * sides / seeds)
        decided = (ahead > width[:, None]).any(axis=1) | (ahead < -width[:, None]).all(axis=1)
        distance = distance_to_support(
            ahead,
            critical=last,
            interaction=prospect.interaction,
            between=between[:, None],
            explained=prospect.answers,
            df=df,
            shares=np.array(sides / seeds),
            last_shares=sides / looks[-1],
        )
        over = decided | (distance < NormalDist().inv_cdf(FUTILITY_THRESHOLD)).all(axis=1) | (seeds == looks[-1])
        total += seeds * float((running & over).sum())
        running &= ~over
    return total / worlds
