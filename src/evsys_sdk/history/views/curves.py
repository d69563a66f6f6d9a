"""Select the metrics and scores of an arm that are drawn as curves."""

from __future__ import annotations

from dataclasses import dataclass

from ...record.runs import Points, RunRecord
from ...record.values import number
from ...record.view.question import is_score

_PREFERRED = ("loss", "train/loss", "reward/mean", "reward")


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over the steps of one arm."""

    label: str
    metric: str
    points: Points


def read_training_curve(arm: RunRecord, label: str) -> Curve | None:
    """The loss of an arm, or another metric of every step if it has none; None without one."""
    names = [name for name, points in arm.logged.items() if not is_score(name) and len(points) > 1]
    ranked = [*(name for name in _PREFERRED if name in names), *(name for name in names if "loss" in name)]
    return Curve(label, ranked[0], arm.logged[ranked[0]]) if ranked else None


def score_curve(arm: RunRecord, preferred: str, label: str) -> Curve | None:
    """A score of an arm over its steps: the preferred one if it has several points, else another with several."""
    scored: dict[str, Points] = {}
    for metric, step, _, score in arm.scores:
        if (value := number(score.get("value"))) is not None:
            scored.setdefault(metric, []).append((step, value))
    curves = {metric: points for metric, points in arm.logged.items() if is_score(metric)} | scored
    several = sorted(metric for metric, points in curves.items() if len(points) > 1 and is_score(metric))
    same_kind = [metric for metric in several if metric.rpartition("/")[2] == preferred.rpartition("/")[2]]
    chosen = preferred if preferred in several else next(iter([*same_kind, *several]), None)
    return None if chosen is None else Curve(label, chosen, curves[chosen])
