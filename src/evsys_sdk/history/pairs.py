"""Compare two runs task by task: their difference and its uncertainty.

The interval is that of the conclusion if it compared the two runs, else one for this pair alone; `population` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..record.view.model import ExperimentView
from ..record.view.question import is_score
from ..record.view.task_scores import SetScores


@dataclass(frozen=True, slots=True)
class Side:
    """One run, as a side of a comparison."""

    view: ExperimentView
    run: str
    scores: Mapping[str, SetScores]
    """By full metric name."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One metric, second run minus first."""

    metric: str
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    n_tasks: int | None
    """Number of paired tasks; None without scores by task."""
    n_seeds: tuple[int, int]
    remark: str = ""
    covers: str = ""
    """The variance that the interval covers: `tasks`, `seeds`, or `tasks and seeds`."""
    stderr: float | None = None
    df: float | None = None
    population: str = ""
    """Description of the data behind the interval."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero and covers seed variance."""
        clear = self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
        return clear and "seeds" in self.covers


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """The mean scores of two runs on one task, over their seeds."""

    task: str
    a: float | None
    b: float | None
    change: Literal["gained", "lost", "same", "unpaired"]
    prompt: str = ""
    """The beginning of its prompt; empty if it is unknown."""


_SHOWN_FIRST = ("lost", "gained", "unpaired", "same")


def compare_tasks(first: SetScores | None, second: SetScores | None) -> list[ComparedTask]:
    """Every task of one metric, lost ones first."""
    left, right = _task_means(first), _task_means(second)
    rows: list[ComparedTask] = []
    for task in dict.fromkeys([*left, *right]):
        a, b = left.get(task), right.get(task)
        if a is None or b is None:
            rows.append(ComparedTask(task, a, b, "unpaired"))
        else:
            rows.append(ComparedTask(task, a, b, "gained" if b > a else "lost" if b < a else "same"))
    return sorted(rows, key=lambda row: (_SHOWN_FIRST.index(row.change), row.task))


def _task_means(scores: SetScores | None) -> dict[str, float]:
    """Task -> its mean score over seeds."""
    values_by_task: dict[str, list[float]] = {}
    for by_task in scores.by_task if scores is not None else ():
        for task, value in by_task.items():
            values_by_task.setdefault(task, []).append(value)
    return {task: sum(values) / len(values) for task, values in values_by_task.items()}


def compare_sides(first: Side, second: Side) -> list[PairedDifference]:
    """The differences of all common metrics, sorted by name."""
    left, right = first.scores, second.scores
    pairs = [pair_scores(metric, left[metric], right[metric]) for metric in sorted(left) if metric in right]
    return [_as_concluded(pair, first, second) for pair in pairs]


def _as_concluded(pair: PairedDifference, first: Side, second: Side) -> PairedDifference:
    """The difference of the conclusion if it compared the two runs, else `pair`."""
    if first.view.id != second.view.id or pair.metric != first.view.metric:
        return pair
    runs = first.view.run(first.run), second.view.run(second.run)
    for baseline, other, sign in ((*runs, 1), (*reversed(runs), -1)):
        concluded = other.difference if baseline and other and baseline.is_baseline else None
        if concluded is not None and concluded.low is not None and concluded.high is not None:
            low, high = sorted((sign * concluded.low, sign * concluded.high))
            population = f"as concluded: all runs of {first.view.id}, simultaneous"
            return replace(pair, difference=sign * concluded.value, low=low, high=high, population=population)
    return pair


def pair_scores(metric: str, first: SetScores, second: SetScores) -> PairedDifference:
    """Second minus first, over the common tasks."""
    task_sets = [set(by_task) for by_task in [*first.by_task, *second.by_task]]
    common = task_sets[0].intersection(*task_sets[1:])
    seeds = (len(first.totals), len(second.totals))
    if len(common) < 2:  # one task gives no variance between tasks
        matrices = [[[total] for total in side.totals] for side in (first, second)]
        remark = "not paired: no scores by task" if not common else "not paired: one common task"
    else:
        matrices = [[[seed[task] for task in sorted(common)] for seed in side.by_task] for side in (first, second)]
        remark = _remark(first, second, common)
    paired = len(common) if len(common) > 1 else None
    left, right = (sum(map(sum, rows)) / sum(map(len, rows)) for rows in matrices)
    stderr, df, covers = _uncertainty(matrices[0], matrices[1], by_task=paired is not None)
    difference, half = right - left, _half_width(stderr, df)
    low, high = (None, None) if half is None else (difference - half, difference + half)
    values = [value for rows in matrices for row in rows for value in row]
    if low is not None and high is not None and is_score(metric) and 0.0 <= min(values) <= max(values) <= 1.0:
        low, high = max(low, -1.0), min(high, 1.0)  # a rate cannot differ by more
    population = f"{seeds[0]} and {seeds[1]} seeds, this pair alone"
    population = f"{paired} common tasks, {population}" if paired else population
    return PairedDifference(
        metric, left, right, difference, low, high, paired, seeds, remark, covers, stderr, df, population
    )


def _remark(first: SetScores, second: SetScores, common: set[str]) -> str:
    largest = max(len(by_task) for by_task in [*first.by_task, *second.by_task])
    remarks = [f"only {len(common)} common tasks of {largest}"] if len(common) < largest else []
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        remarks.append("the task sets differ")
    if len(first.totals) == 1 and len(second.totals) == 1:
        remarks.append("one seed each: the interval covers tasks, not the variance between seeds")
    return "; ".join(remarks)


def _uncertainty(
    left: Sequence[Sequence[float]], right: Sequence[Sequence[float]], *, by_task: bool
) -> tuple[float | None, float | None, str]:
    """Standard error, degrees of freedom and covered variance; (None, None, "") if it cannot be estimated."""
    import numpy as np

    from ..experiment.statistics.two_level import RunScores, compare

    comparison = compare(RunScores(np.array(left)), [RunScores(np.array(right))])
    if comparison is None:
        return None, None, ""
    covers = [*(["tasks"] if by_task else []), *(["seeds"] if comparison.noise is not None else [])]
    return comparison.estimates[0].stderr, comparison.estimates[0].df, " and ".join(covers)


def _half_width(stderr: float | None, df: float | None) -> float | None:
    """Half of the width of the 95 % interval; None without a standard error."""
    if stderr is None or df is None:
        return None
    from ..experiment.statistics.student_t import t_quantile

    return t_quantile(0.975, df) * stderr
