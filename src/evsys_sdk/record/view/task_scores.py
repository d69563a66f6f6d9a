"""Scores by task, for pairing: read from the files of arms when they are asked for."""

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
    """One metric of one run on one set: the seeds, each with its score and, where known, that of each task."""

    sha256: str
    totals: list[float] = field(default_factory=list[float])
    by_task: list[ByTask] = field(default_factory=list[ByTask])

    @property
    def mean(self) -> float:
        return sum(self.totals) / len(self.totals)


def scores_of(arms: Iterable[RunRecord]) -> dict[str, SetScores]:
    """The last scoring of each set by the seeds of a run, by full metric name; without one, the plain metrics."""
    return gather_scores((arm.score_lines, arm.metrics) for arm in arms)


def gather_scores(seeds: Iterable[tuple[Iterable[Object], Mapping[str, float]]]) -> dict[str, SetScores]:
    """The same from the scorings and the metrics of each seed."""
    found: dict[str, SetScores] = {}
    for lines, metrics in seeds:
        # Steps in order, so that the last one stays.
        scored = each_score(lines)
        latest = {metric: (line, value) for metric, _, line, value in scored if line.get("split") != "baseline"}
        for metric, (line, value) in latest.items():
            add_score(found, metric, line, value)
        for metric, score in metrics.items():
            if is_score(metric) and metric not in latest:
                add_score(found, metric, {}, {"value": score})
    return found


def add_score(found: dict[str, SetScores], metric: str, line: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    """Add the scoring of one seed to what is known of a metric."""
    score = number(value.get("value"))
    if score is None:
        return
    known = found.setdefault(metric, SetScores(text(line.get("sha256"))))
    known.totals.append(score)
    known.by_task.append(task_scores(line, value) or {})
