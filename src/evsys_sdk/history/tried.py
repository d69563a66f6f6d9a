"""What was tried: experiments grouped by algorithm, and what each value of its params led to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from .digest import Item
from .text import score_text

_MOST_PARAMS = 5
_MOST_VALUES = 6
_FEW_VALUES = 12
"""A param with more values than this was drawn at random; its numbers are rounded to one digit and counted so."""


class Combination(NamedTuple):
    """Experiments whose best run has the same algorithm and params."""

    algorithms: str
    metric: str
    mode: str
    params: str
    """As JSON."""
    experiments: int
    runs: int | None
    total: float | None
    """Sum of the scores."""
    scored: int | None
    best: float | None
    """The best score; its sign is turned where less is better."""
    best_id: str


class _Value:
    """One value of one param: how often, and what came of it."""

    __slots__ = ("best", "experiments", "scored", "total")

    def __init__(self) -> None:
        self.experiments, self.scored, self.total = 0, 0, 0.0
        self.best: float | None = None

    def add(self, one: Combination | _Value, *, with_score: bool) -> None:
        self.experiments += one.experiments
        if with_score and one.scored:
            self.scored += one.scored
            self.total += one.total or 0.0
            self.best = one.best if self.best is None or (one.best or 0.0) > self.best else self.best

    @property
    def mean(self) -> float:
        return self.total / self.scored


def tried_items(combinations: Sequence[Combination], metric: str) -> list[Item]:
    """One statement for each algorithm, the most used first; scores are those in `metric`."""
    groups: dict[str, list[Combination]] = {}
    for one in combinations:
        groups.setdefault(one.algorithms.strip("|").replace("|", "+") or "unknown", []).append(one)
    ranked = sorted(groups.items(), key=lambda pair: (-sum(one.experiments for one in pair[1]), pair[0]))
    return [_item(algorithm, found, metric) for algorithm, found in ranked]


def _item(algorithm: str, found: Sequence[Combination], metric: str) -> Item:
    scored = [one for one in found if one.metric == metric and one.scored]
    sign = -1 if scored and scored[0].mode == "min" else 1
    experiments, runs = sum(one.experiments for one in found), sum(one.runs or 0 for one in found)
    data: dict[str, Any] = {"algorithm": algorithm, "experiments": experiments, "runs": runs}
    text = f"{algorithm}: {experiments:,} experiment{'s' if experiments != 1 else ''}, "
    text += f"{runs:,} run{'s' if runs != 1 else ''}"
    if scored:
        best = min(scored, key=lambda one: (-(one.best or 0.0), one.best_id))
        score = sign * (best.best or 0.0)
        data["best"] = {"score": score, "id": best.best_id}
        text += f", best {score_text(score)} ({best.best_id})"
    shown: list[str] = []
    for name, values in _params(found, metric)[:_MOST_PARAMS]:
        ranked = sorted(values.items(), key=lambda pair: (-pair[1].experiments, pair[0]))[:_MOST_VALUES]
        ranked.sort(key=lambda pair: _in_order(pair[0]))
        shown.append(f"{name} " + ", ".join(_value_text(value, one) for value, one in ranked))
        data.setdefault("params", {})[name] = {value: _value_data(one, sign) for value, one in ranked}
    if shown:
        text += ". Mean score (experiments) by value: " + "; ".join(shown)
    return Item(text, data)


def _params(found: Sequence[Combination], metric: str) -> list[tuple[str, dict[str, _Value]]]:
    """The params that took several values, the one with the largest differences first."""
    params: dict[str, dict[str, _Value]] = {}
    # Parsed at once: one call for each would take several times as long.
    parsed: list[dict[str, Any]] = json.loads(f"[{','.join(one.params for one in found)}]")
    for one, combination in zip(found, parsed, strict=True):
        with_score = one.metric == metric
        for name, raw in combination.items():
            values = params.setdefault(name, {})
            key = str(raw)
            value = values.get(key)
            if value is None:
                value = values[key] = _Value()
            value.add(one, with_score=with_score)
    several = [(name, _rounded(values)) for name, values in params.items() if len(values) > 1]
    return sorted(several, key=lambda pair: (-_spread(pair[1]), pair[0]))


def _rounded(values: dict[str, _Value]) -> dict[str, _Value]:
    """Few values as they are; many numbers as what they round to."""
    if len(values) <= _FEW_VALUES:
        return values
    merged: dict[str, _Value] = {}
    for key, value in values.items():
        with contextlib.suppress(ValueError):
            key = f"~{float(key):.0e}"
        merged.setdefault(key, _Value()).add(value, with_score=True)
    return merged


def _spread(values: dict[str, _Value]) -> float:
    means = [value.mean for value in values.values() if value.scored]
    return max(means) - min(means) if means else 0.0


def _value_text(value: str, found: _Value) -> str:
    return f"{value}: {score_text(found.mean if found.scored else None)} ({found.experiments:,})"


def _value_data(found: _Value, sign: int) -> dict[str, Any]:
    data: dict[str, Any] = {"experiments": found.experiments}
    if found.scored:
        data |= {"mean_score": round(found.mean, 6), "best_score": sign * (found.best or 0.0)}
    return data


def _in_order(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value.lstrip("~")), value
    except ValueError:
        return True, 0.0, value
