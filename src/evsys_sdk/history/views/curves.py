"""How training went, step by step: which of an arm's metrics and scores are drawn, and how with characters.

Braille dots for one curve, a mark of its own for each of several, ASCII where the terminal knows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...record.runs import Points, RunRecord
from ...record.values import number
from ...record.view.question import is_score
from ..text import clip, is_unicode

_PREFERRED = ("loss", "train/loss", "reward/mean", "reward")
_MARKS = "●○▲△■□"
_ASCII_MARKS = "*o#+x@"
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille cell, by row and column."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over the steps of one arm."""

    label: str
    metric: str
    points: Points


def read_training_curve(arm: RunRecord, label: str) -> Curve | None:
    """The loss of an arm, or what else it logged at every step if it has none."""
    names = [name for name, points in arm.logged.items() if not is_score(name) and len(points) > 1]
    wanted = [*(name for name in _PREFERRED if name in names), *(name for name in names if "loss" in name)]
    return Curve(label, wanted[0], arm.logged[wanted[0]]) if wanted else None


def score_curve(arm: RunRecord, preferred: str, label: str) -> Curve | None:
    """A score of an arm over its steps: the preferred one if it was taken more than once, else another that was."""
    scored: dict[str, Points] = {}
    for metric, step, _, found in arm.scores:
        if (value := number(found.get("value"))) is not None:
            scored.setdefault(metric, []).append((step, value))
    curves = {metric: points for metric, points in arm.logged.items() if is_score(metric)} | scored
    several = sorted(metric for metric, points in curves.items() if len(points) > 1 and is_score(metric))
    same_kind = [metric for metric in several if metric.rpartition("/")[2] == preferred.rpartition("/")[2]]
    chosen = preferred if preferred in several else next(iter([*same_kind, *several]), None)
    return None if chosen is None else Curve(label, chosen, curves[chosen])


def draw(
    curves: Sequence[tuple[str, Points]], *, title: str, width: int, height: int = 10, unicode: bool | None = None
) -> str:
    """The curves in one frame with axes; nothing when none of them has points."""
    shown = [(label, points) for label, points in curves if points]
    if not shown:
        return ""
    fine = is_unicode() if unicode is None else unicode
    everything = [point for _, points in shown for point in points]
    x_low, x_high = _range([x for x, _ in everything])
    y_low, y_high = _range([y for _, y in everything])
    ticks = [f"{y_high:.4g}", f"{(y_low + y_high) / 2:.4g}", f"{y_low:.4g}"]
    margin = max(len(tick) for tick in ticks) + 1
    columns = max(10, min(width, 120) - margin - 2)
    scale = _Scale(x_low, x_high, y_low, y_high)
    single = len(shown) == 1 and fine
    cells = _braille(shown[0][1], scale, columns, height) if single else _mark(shown, scale, columns, height, fine)
    labels = {0: ticks[0], height // 2: ticks[1], height - 1: ticks[2]}
    wall = "┤" if fine else "|"
    lines = [f"{labels.get(row, ''):>{margin}}{wall}{''.join(line).rstrip()}" for row, line in enumerate(cells)]
    foot = ("└" + "─" * columns) if fine else ("+" + "-" * columns)
    left, right = f"{x_low:g}", f"{x_high:g}"
    steps = f"{left}{'step':^{max(4, columns - len(left) - len(right))}}{right}"
    head = title if single else f"{title}   {_legend(shown, fine, width - len(title) - 3)}"
    return "\n".join([head.rstrip(), *lines, " " * margin + foot, " " * (margin + 1) + steps])


class _Scale:
    """Values to places in a frame."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self._x, self._y = (x_low, x_high - x_low), (y_high, y_high - y_low)

    def place(self, point: tuple[float, float], columns: int, rows: int) -> tuple[int, int]:
        column = round((point[0] - self._x[0]) / self._x[1] * (columns - 1))
        row = round((self._y[0] - point[1]) / self._y[1] * (rows - 1))
        return column, row


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    room = abs(low) * 0.1 or 1.0  # a curve that stays where it is needs a frame all the same
    return low - room, high + room


def _braille(points: Points, scale: _Scale, columns: int, rows: int) -> list[list[str]]:
    cells = [[0] * columns for _ in range(rows)]
    for column, row in _path(points, scale, 2 * columns, 4 * rows):
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return [[chr(_BRAILLE + bits) if bits else " " for bits in line] for line in cells]


def _mark(curves: Sequence[tuple[str, Points]], scale: _Scale, columns: int, rows: int, fine: bool) -> list[list[str]]:
    cells = [[" "] * columns for _ in range(rows)]
    marks = _MARKS if fine else _ASCII_MARKS
    for place, (_, points) in reversed(list(enumerate(curves))):  # the first one last, on top of the others
        seen = [False] * columns
        for column, row in _path(points, scale, columns, rows):
            # One mark a column, and where curves meet they take turns: none of them may vanish behind another.
            free = cells[row][column] == " " or column % len(curves) == place % len(curves)
            if free and not seen[column]:
                cells[row][column] = marks[place % len(marks)]
                seen[column] = True
    return cells


def _path(points: Points, scale: _Scale, columns: int, rows: int) -> list[tuple[int, int]]:
    """The places on the line through all points."""
    places = [scale.place(point, columns, rows) for point in points]
    path = places[:1]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        path += [(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)) for i in range(1, steps + 1)]
    return path


def _legend(curves: Sequence[tuple[str, Points]], fine: bool, width: int) -> str:
    marks = _MARKS if fine else _ASCII_MARKS
    each = max(8, width // len(curves) - 4)
    return "  ".join(f"{marks[place % len(marks)]} {clip(label, each)}" for place, (label, _) in enumerate(curves))
