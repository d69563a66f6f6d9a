"""Numbers as people read them, and whether a terminal can be redrawn."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping


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


def is_live_terminal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether stderr is an interactive UTF-8 terminal that can be redrawn."""
    environment = os.environ if environment is None else environment
    is_dumb = environment.get("TERM", "dumb") in ("dumb", "unknown")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    shares_terminal = environment.get("EVSYS_ARM_WORKER")  # with the processes of other arms
    plain = is_dumb or is_ci or shares_terminal or environment.get("NO_COLOR")
    return sys.stderr.isatty() and not plain and sys.stderr.encoding.lower().startswith("utf")
