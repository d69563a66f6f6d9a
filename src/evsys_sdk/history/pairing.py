"""Scores of two experiments, task by task: how much better one is, and how far that can be believed.

The best run of each is compared, over all of its seeds. Tasks that both were scored on are paired; the interval is
that of the conclusions (tasks and seeds, `experiment/statistics/two_level.py`), for one comparison alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .curves import full_name
from .detail import Detail
from .outcome import is_score
from .reading import SCORES, items, number, part, read_lines, text

type ByTask = dict[str, float]


@dataclass(frozen=True, slots=True)
class SetScores:
    """One metric of one run on one set: the seeds, each with its score and, where known, that of each task."""

    sha256: str
    totals: list[float]
    stderrs: list[float | None]
    by_task: list[ByTask]

    @property
    def mean(self) -> float:
        return sum(self.totals) / len(self.totals)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One metric, second experiment minus first."""

    metric: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    n_tasks: int | None
    """Tasks that were paired; None where there are no scores by task."""
    n_seeds: tuple[int, int]
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_differences(first: Detail, second: Detail) -> list[PairedDifference]:
    """Every metric that both experiments have, in the order of its name."""
    left, right = scores_of(first), scores_of(second)
    return [pair_scores(metric, left[metric], right[metric]) for metric in sorted(left) if metric in right]


def scores_of(detail: Detail) -> dict[str, SetScores]:
    """The last scoring of each set by the best run, by full metric name; without one, the plain metrics."""
    found: dict[str, SetScores] = {}
    for arm in detail.chosen_arms:
        latest: dict[str, tuple[float, Mapping[str, Any], Mapping[str, Any]]] = {}
        for line in read_lines(detail.arm_dir(arm) / SCORES):
            split, name, step = text(line.get("split")), text(line.get("name")), number(line.get("step")) or 0.0
            for short, raw in part(line, "metrics").items():
                metric = full_name(split, name, short)
                if split != "baseline" and (metric not in latest or latest[metric][0] <= step):
                    latest[metric] = (step, line, part({"it": raw}, "it"))
        for metric, (_, line, value) in latest.items():
            add_score(found, metric, line, value)
        for metric, score in arm.metrics.items():
            if is_score(metric) and metric not in latest:
                add_score(found, metric, {}, {"value": score, "stderr": arm.metrics.get(f"{metric}/stderr")})
    return found


def add_score(found: dict[str, SetScores], metric: str, line: Mapping[str, Any], value: Mapping[str, Any]) -> None:
    """Count one seed's scoring of a set to what is `found` of a metric."""
    score = number(value.get("value"))
    if score is None:
        return
    tasks, per_task = items(line.get("tasks")), items(value.get("per_task"))
    pairs = zip(tasks, per_task, strict=False) if len(tasks) == len(per_task) else ()
    by_task = {str(task): reward for task, raw in pairs if (reward := number(raw)) is not None}
    known = found.setdefault(metric, SetScores(text(line.get("sha256")), [], [], []))
    known.totals.append(score)
    known.stderrs.append(number(value.get("stderr")))
    known.by_task.append(by_task)


def pair_scores(metric: str, first: SetScores, second: SetScores) -> PairedDifference:
    """Second minus first, over the tasks that both have."""
    everyone = [set(one) for one in [*first.by_task, *second.by_task]]
    common = everyone[0].intersection(*everyone[1:])
    seeds = (len(first.totals), len(second.totals))
    if len(common) < 2:
        low, high = _apart(first, second)
        remark = "not paired: no scores by task" if not common else "not paired: one common task"
        gap = second.mean - first.mean
        return PairedDifference(metric, first.mean, second.mean, gap, low, high, None, seeds, remark)
    tasks = sorted(common)
    left, right = _matrix(first, tasks), _matrix(second, tasks)
    means = [sum(map(sum, rows)) / (len(rows) * len(tasks)) for rows in (left, right)]
    low, high = _interval(left, right)
    return PairedDifference(
        metric, means[0], means[1], means[1] - means[0], low, high, len(tasks), seeds, _remark(first, second, common)
    )


def _remark(first: SetScores, second: SetScores, common: set[str]) -> str:
    largest = max(len(one) for one in [*first.by_task, *second.by_task])
    remarks = [f"only {len(common)} common tasks of {largest}"] if len(common) < largest else []
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        remarks.append("the task sets differ")
    if len(first.totals) == 1 and len(second.totals) == 1:
        remarks.append("one seed each: the luck of training is not in the interval")
    return "; ".join(remarks)


def _matrix(scores: SetScores, tasks: Sequence[str]) -> list[list[float]]:
    return [[one[task] for task in tasks] for one in scores.by_task]


def _interval(left: list[list[float]], right: list[list[float]]) -> tuple[float | None, float | None]:
    import numpy as np

    from ..experiment.statistics.student_t import t_quantile
    from ..experiment.statistics.two_level import RunScores, compare

    found = compare(RunScores(np.array(left)), [RunScores(np.array(right))])
    if found is None:
        return None, None
    estimate, half = float(found.estimates[0]), t_quantile(0.975, float(found.df[0])) * float(found.stderr[0])
    return estimate - half, estimate + half


def _apart(first: SetScores, second: SetScores) -> tuple[float | None, float | None]:
    """An interval from standard errors, where both have one and nothing can be paired."""
    variances = [
        sum((error or 0.0) ** 2 for error in one.stderrs) / len(one.stderrs) ** 2
        for one in (first, second)
        if None not in one.stderrs
    ]
    if len(variances) < 2:
        return None, None
    gap, half = second.mean - first.mean, 1.96 * math.sqrt(sum(variances))
    return gap - half, gap + half
