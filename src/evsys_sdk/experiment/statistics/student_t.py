"""Student's t distribution: how wide an interval must be when the noise itself was estimated from a few values.

    t_quantile(0.975, 2)    4.3027
    t_cdf(4.3027, 2)        0.975

Good to about twelve digits for one degree of freedom and more; fractions of a degree are fine.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 1e-15


def t_cdf(x: float, df: float) -> float:
    """The probability of a value below `x`."""
    if math.isinf(x):
        return float(x > 0)
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + x * x))
    return 1 - tail if x > 0 else tail


@lru_cache(maxsize=16384)
def t_quantile(p: float, df: float) -> float:
    """The value that a share `p` of the distribution lies below.

    To the last bit the same as ever: a search that continues compares what it decides with what is on record.
    """
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"a quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    if p <= 0.5:
        return -t_quantile(1 - p, df) if p < 0.5 else 0.0
    low, high = 0.0, 2.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    for _ in range(60):  # halves the interval down to the precision of a float
        middle = (low + high) / 2
        low, high = (low, middle) if t_cdf(middle, df) > p else (middle, high)
    return (low + high) / 2


def chi2_quantile(p: float, df: float) -> float:
    """The value that a share `p` of the chi-square distribution lies below, to about a per cent (Wilson, Hilferty)."""
    from statistics import NormalDist  # takes longer than all else here together

    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(p) * math.sqrt(spread)) ** 3


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a * _evaluate_fraction(a, b, x)


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    """Evaluated from the front (Lentz), two terms a turn."""
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
