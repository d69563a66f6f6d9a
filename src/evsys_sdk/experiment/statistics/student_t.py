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
    x = (low + high) / 2
    for _ in range(100):
        error = t_cdf(x, df) - p
        low, high = (low, x) if error > 0 else (x, high)
        step = x - error / _density(x, df)
        following = step if low < step < high else (low + high) / 2  # Newton, as long as it stays where the answer is
        if abs(following - x) <= 1e-13 * x:
            return following
        x = following
    return x


def chi2_quantile(p: float, df: float) -> float:
    """The value that a share `p` of the chi-square distribution lies below, to about a per cent (Wilson, Hilferty)."""
    from statistics import NormalDist  # takes longer than all else here together

    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(p) * math.sqrt(spread)) ** 3


def _density(x: float, df: float) -> float:
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log_scale - (df + 1) / 2 * math.log1p(x * x / df))


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
