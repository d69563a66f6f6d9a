"""Draw the scores of runs with their intervals as text.

two_passes        ├─────●─────┤            0.618
three_passes                        ├────●  0.997
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...history.text import clip, is_unicode
from ...record.values import number

_MOST_RUNS = 12
_LONGEST_NAME = 32


def draw_scores(conclusion: Mapping[str, Any], *, width: int) -> str:
    """The scores of a conclusion's runs on one scale; empty for fewer than two scored runs."""
    runs: Sequence[Mapping[str, Any]] = conclusion.get("runs") or []
    rows = [(str(run.get("name")), *values) for run in runs if (values := _values(run)) is not None]
    if len(rows) < 2:
        return ""
    low, high = min(row[2] for row in rows), max(row[3] for row in rows)
    label = min(max(len(row[0]) for row in rows), _LONGEST_NAME)
    columns = max(min(width, 100) - label - 12, 10)  # the rest holds the number and gaps
    span = (high - low) or 1.0
    fine = is_unicode()
    scale = f"{'':{label}}  {low:<.3g}{high:>{columns - len(f'{low:.3g}')}.3g}"
    metric = str(conclusion.get("metric") or "")
    lines = [f"{scale}   {metric}"] if len(scale) + 3 + len(metric) <= width else [clip(metric, width), scale]
    for name, mean, least, most in rows[:_MOST_RUNS]:
        at, start, end = (round((value - low) / span * (columns - 1)) for value in (mean, least, most))
        lines.append(f"{clip(name, label):{label}}  {_bar(columns, start, at, end, fine)}  {mean:.3f}")
    if len(rows) > _MOST_RUNS:
        lines.append(f"… {len(rows) - _MOST_RUNS} more")
    return "\n".join(lines)


def _bar(columns: int, start: int, at: int, end: int, fine: bool) -> str:
    left, line, right, dot = "├─┤●" if fine else "|-|o"
    cells = [" "] * columns
    cells[start : end + 1] = [line] * (end + 1 - start)
    cells[start], cells[end], cells[at] = left, right, dot
    return "".join(cells)


def _values(run: Mapping[str, Any]) -> tuple[float, float, float] | None:
    mean = number(run.get("mean"))
    if mean is None:
        return None
    low, high = number(run.get("low")), number(run.get("high"))
    return mean, mean if low is None else low, mean if high is None else high
