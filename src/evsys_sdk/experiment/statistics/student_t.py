"""Student's t and chi-square distribution, without scipy.

    t_quantile(0.975, 2)    4.3027
    t_cdf(4.3027, 2)        0.975

The t distribution is accurate to about twelve digits for df >= 1; df may be fractional.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 1e-15


def t_cdf(x: float, df: float) -> float:
    """Cumulative distribution function."""
    if math.isinf(x):
        return float(x > 0)
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + x * x))
    return 1 - tail if x > 0 else tail


@lru_cache(maxsize=16384)
def t_quantile(p: float, df: float) -> float:
    """Quantile function.

    Results must stay bit-identical between versions: a resumed search compares its decisions with the record.
    """
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"a quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    if p <= 0.5:
        return -t_quantile(1 - p, df) if p < 0.5 else 0.0
    low, high = 0.0, 2.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    for _ in range(60):  # bisection down to float precision
        middle = (low + high) / 2
        low, high = (low, middle) if t_cdf(middle, df) > p else (middle, high)
    return (low + high) / 2


def chi2_quantile(p: float, df: float) -> float:
    """Quantile of the chi-square distribution, accurate to about 1 % (Wilson-Hilferty)."""
    from statistics import NormalDist  # slow to import

    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(p) * math.sqrt(spread)) ** 3


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction on the side with fast convergence."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a * _evaluate_fraction(a, b, x)


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction by Lentz's algorithm, two terms per iteration."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _nonzero(1 + even * d), _nonzero(1 + even / c)
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _nonzero(1 + odd * d), _nonzero(1 + odd / c)
        value *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
