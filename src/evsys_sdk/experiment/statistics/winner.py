"""What the best of several runs is really worth: it was chosen for its score, so its score flatters it."""

from __future__ import annotations

import numpy as np

from .two_level import Differences, FloatArray


def shrunk(differences: Differences) -> FloatArray:
    """Each difference, pulled towards their mean by the share of their spread that luck explains (empirical Bayes).

    Runs that spread no more than luck would spread them all get the mean. The noise of the baseline moves all of them
    together; it makes none of them the winner and so takes no part. A single difference was not chosen and stays.
    """
    estimates, covariance = differences.estimates, differences.covariance
    size = len(estimates)
    if size < 2:
        return estimates.copy()
    shared = (covariance.sum() - np.trace(covariance)) / (size * (size - 1))
    own = np.clip(np.diag(covariance) - shared, 0.0, None)
    centre = estimates.mean()
    real = max(0.0, float(estimates.var(ddof=1) - own.mean()))
    weight = np.divide(real, real + own, out=np.ones(size), where=real + own > 0)
    return centre + weight * (estimates - centre)
