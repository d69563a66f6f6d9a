"""Scores by task for paired comparisons, read from the files of arms on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..run_files.scores import task_scores
from ..runs import RunRecord, each_score
from ..values import Object, number, text
from .question import is_score

type ByTask = dict[str, float]


@dataclass(frozen=True, slots=True)
class SetScores:
    """One metric of one run on one set: the score of each seed, in total and by task if known."""

    sha256: str
    totals: list[float] = field(default_factory=list[float])
    by_task: list[ByTask] = field(default_factory=list[ByTask])

    @property
    def mean(self) -> float:
        return sum(self.totals) / len(self.totals)


def scores_of(arms: Iterable[RunRecord]) -> dict[str, SetScores]:
    """Metric -> the last scorings of a run's seeds; seeds without a scoring contribute their plain metrics."""
    return gather_scores((arm.score_lines, arm.metrics) for arm in arms)


def gather_scores(seeds: Iterable[tuple[Iterable[Object], Mapping[str, float]]]) -> dict[str, SetScores]:
    """Metric -> the last scorings, from the scorings and the metrics of each seed."""
    scores: dict[str, SetScores] = {}
    for lines, metrics in seeds:
        # Sorted by step, so that the last one stays.
        scored = each_score(lines)
        latest = {metric: (line, value) for metric, _, line, value in scored if line.get("split") != "baseline"}
        for metric, (line, value) in latest.items():
            add_score(scores, metric, line, value)
        for metric, score in metrics.items():
            if is_score(metric) and metric not in latest:
                add_score(scores, metric, {}, {"value": score})
    return scores


def add_score(scores: dict[str, SetScores], metric: str, line: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    """Add the scoring of one seed to its metric."""
    score = number(value.get("value"))
    if score is None:
        return
    set_scores = scores.setdefault(metric, SetScores(text(line.get("sha256"))))
    set_scores.totals.append(score)
    set_scores.by_task.append(task_scores(line, value) or {})
