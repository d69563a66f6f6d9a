"""Numbers as people read them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """`0.4123`, `12.35`, `1.2e-05`: four meaningful digits, and never wider than it needs to be."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.{3 if abs(value) >= 10 else 4}f}"
    return f"{value:.1e}"


def count(value: float) -> str:
    """`950`, `12.3k`, `4.5M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """`0:42`, `12:05`, `3:07:11`, `2d 04:10`."""
    total = round(seconds)
    minutes, hours, days = total // 60 % 60, total // 3600 % 24, total // 86400
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"
