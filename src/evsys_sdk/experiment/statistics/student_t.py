"""Student's t and chi-square distribution, without scipy.

    t_quantile(0.975, 2)    4.3027
    t_cdf(4.3027, 2)        0.975

The tail beyond x = sqrt(df) / tan(u) is an integral of sin ** (df - 1) from 0 to u. The t distribution is accurate to
about ten digits for df >= 1; df may be fractional.
"""

from __future__ import annotations

import math
from functools import lru_cache

_STEP = 0.03
_STEPS = [_STEP * index for index in range(-113, 114)]
_NODES = [1 / (1 + math.exp(-math.pi * math.sinh(step))) for step in _STEPS]
_WEIGHTS = [_STEP * math.pi * math.cosh(step) * node * (1 - node) for step, node in zip(_STEPS, _NODES, strict=True)]
"""Tanh-sinh quadrature on [0, 1], which is accurate for fractional powers too. Lists, because `evsys history` computes
a few quantiles, and importing numpy takes longer than the rest of that command."""


def t_cdf(x: float, df: float) -> float:
    """Cumulative distribution function."""
    if math.isinf(x):
        return float(x > 0)
    angle = math.atan2(math.sqrt(df), abs(x))
    powers = [math.sin(angle * node) ** (df - 1) for node in _NODES]
    tail = _density_at_zero(df) * math.sqrt(df) * angle * math.sumprod(_WEIGHTS, powers)
    return 1 - tail if x > 0 else tail


@lru_cache(maxsize=16384)
def t_quantile(p: float, df: float) -> float:
    """Quantile function."""
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"a quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    if p <= 0.5:
        return -t_quantile(1 - p, df) if p < 0.5 else 0.0
    scale = _density_at_zero(df)
    x, step = 0.0, 1.0
    while step > 1e-13 * x:  # Newton's method from the left: the function is concave, so each step is too short
        step = (p - t_cdf(x, df)) / (scale * (1 + x * x / df) ** (-(df + 1) / 2))
        x += step
    return x


def chi2_quantile(p: float, df: float) -> float:
    """Quantile of the chi-square distribution, accurate to about 1 % (Wilson-Hilferty)."""
    from statistics import NormalDist  # slow to import

    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(p) * math.sqrt(spread)) ** 3


def _density_at_zero(df: float) -> float:
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
