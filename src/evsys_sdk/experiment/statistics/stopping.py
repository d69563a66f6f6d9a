"""When more seeds are not worth their price: the chance that the last look supports a claim.

Between two looks at growing numbers of seeds the difference of two runs stays about where it is; how far the seeds that
are left may still move it is known from those that are there. Giving up makes no claim true: it costs no error.
"""

from __future__ import annotations

import numpy as np

from .student_t import chi2_quantile
from .two_level import FloatArray

FUTILITY_THRESHOLD = 0.05
"""The chance to be supported at last, below which an experiment is not worth its other seeds."""
_CAUTION = 0.1
"""The noise of seeds is taken from the upper end of its own uncertainty: few seeds that agree promise nothing."""


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
