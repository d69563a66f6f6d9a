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
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + x * x), x * x / (df + x * x))
    return 1 - tail if x > 0 else tail


@lru_cache(maxsize=16384)
def t_quantile(p: float, df: float) -> float:
    """Quantile function."""
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"a quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    if p <= 0.5:
        return -t_quantile(1 - p, df) if p < 0.5 else 0.0
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
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


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function by its continued fraction; `rest` is 1 - x without rounding errors."""
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, rest, x)
    logs = a * math.log(x) + b * (math.log1p(-x) if x < 0.5 else math.log(rest))
    front = math.exp(logs + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    return front / a * _evaluate_fraction(a, b, x)


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction by Lentz's algorithm, two terms per iteration."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / _nonzero(1 + term * d), _nonzero(1 + term / c)
            value *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
