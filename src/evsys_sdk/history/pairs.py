"""Two runs compared task by task: how much better one is, and with which uncertainty.

A difference has one interval: that of the conclusion where the conclusion compared the two runs, else one for this
pair alone. `population` says which.
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
    """Tasks that were paired; None where there are no scores by task."""
    n_seeds: tuple[int, int]
    remark: str = ""
    covers: str = ""
    """What the interval is about: `tasks`, `seeds`, or `tasks and seeds`."""
    stderr: float | None = None
    df: float | None = None
    population: str = ""
    """What the interval is computed over, in words."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero and covers the variance between seeds."""
        clear = self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
        return clear and "seeds" in self.covers


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """One task of a benchmark, as two runs did on it: the mean over their seeds."""

    task: str
    a: float | None
    b: float | None
    change: Literal["gained", "lost", "same", "unpaired"]
    prompt: str = ""
    """The beginning of what it asks; empty where that is not known."""


_SHOWN_FIRST = ("lost", "gained", "unpaired", "same")


def compare_tasks(first: SetScores | None, second: SetScores | None) -> list[ComparedTask]:
    """Every task of one metric, those that got worse first."""
    left, right = _task_means(first), _task_means(second)
    found: list[ComparedTask] = []
    for task in dict.fromkeys([*left, *right]):
        a, b = left.get(task), right.get(task)
        if a is None or b is None:
            found.append(ComparedTask(task, a, b, "unpaired"))
        else:
            found.append(ComparedTask(task, a, b, "gained" if b > a else "lost" if b < a else "same"))
    return sorted(found, key=lambda one: (_SHOWN_FIRST.index(one.change), one.task))


def _task_means(scores: SetScores | None) -> dict[str, float]:
    """Each task's mean over the seeds that were scored on it."""
    seen: dict[str, list[float]] = {}
    for by_task in scores.by_task if scores is not None else ():
        for task, value in by_task.items():
            seen.setdefault(task, []).append(value)
    return {task: sum(values) / len(values) for task, values in seen.items()}


def compare_sides(first: Side, second: Side) -> list[PairedDifference]:
    """Every metric that both runs have, in the order of its name."""
    left, right = first.scores, second.scores
    found = [pair_scores(metric, left[metric], right[metric]) for metric in sorted(left) if metric in right]
    return [_as_concluded(one, first, second) for one in found]


def _as_concluded(pair: PairedDifference, first: Side, second: Side) -> PairedDifference:
    """The difference as the conclusion of their experiment has it, where it compared the two."""
    if first.view.id != second.view.id or pair.metric != first.view.metric:
        return pair
    runs = first.view.run(first.run), second.view.run(second.run)
    for baseline, other, sign in ((*runs, 1), (*reversed(runs), -1)):
        concluded = other.difference if baseline and other and baseline.is_baseline else None
        if concluded is not None and concluded.low is not None and concluded.high is not None:
            low, high = sorted((sign * concluded.low, sign * concluded.high))
            stated = f"as concluded: all runs of {first.view.id}, simultaneous"
            return replace(pair, difference=sign * concluded.value, low=low, high=high, population=stated)
    return pair


def pair_scores(metric: str, first: SetScores, second: SetScores) -> PairedDifference:
    """Second minus first, over the tasks that both have."""
    everyone = [set(one) for one in [*first.by_task, *second.by_task]]
    common = everyone[0].intersection(*everyone[1:])
    seeds = (len(first.totals), len(second.totals))
    if len(common) < 2:  # one task tells nothing about how tasks differ
        matrices = [[[total] for total in one.totals] for one in (first, second)]
        remark = "not paired: no scores by task" if not common else "not paired: one common task"
    else:
        matrices = [[[seed[task] for task in sorted(common)] for seed in one.by_task] for one in (first, second)]
        remark = _remark(first, second, common)
    paired = len(common) if len(common) > 1 else None
    left, right = (sum(map(sum, rows)) / sum(map(len, rows)) for rows in matrices)
    stderr, df, covers = _uncertainty(matrices[0], matrices[1], by_task=paired is not None)
    difference, half = right - left, _half_width(stderr, df)
    low, high = (None, None) if half is None else (difference - half, difference + half)
    values = [value for rows in matrices for row in rows for value in row]
    if low is not None and high is not None and is_score(metric) and 0.0 <= min(values) <= max(values) <= 1.0:
        low, high = max(low, -1.0), min(high, 1.0)  # a rate cannot differ by more
    stated = f"{seeds[0]} and {seeds[1]} seeds, this pair alone"
    stated = f"{paired} common tasks, {stated}" if paired else stated
    return PairedDifference(
        metric, left, right, difference, low, high, paired, seeds, remark, covers, stderr, df, stated
    )


def _remark(first: SetScores, second: SetScores, common: set[str]) -> str:
    largest = max(len(one) for one in [*first.by_task, *second.by_task])
    remarks = [f"only {len(common)} common tasks of {largest}"] if len(common) < largest else []
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        remarks.append("the task sets differ")
    if len(first.totals) == 1 and len(second.totals) == 1:
        remarks.append("one seed each: the interval covers tasks, not the variance between seeds")
    return "; ".join(remarks)


def _uncertainty(
    left: Sequence[Sequence[float]], right: Sequence[Sequence[float]], *, by_task: bool
) -> tuple[float | None, float | None, str]:
    """Standard error, its degrees of freedom, and what it covers; nothing where neither tasks nor seeds tell."""
    import numpy as np

    from ..experiment.statistics.two_level import RunScores, compare

    found = compare(RunScores(np.array(left), by_task=by_task), [RunScores(np.array(right), by_task=by_task)])
    if found is None:
        return None, None, ""
    covers = [*(["tasks"] if by_task else []), *(["seeds"] if found.noise is not None else [])]
    return found.estimates[0].stderr, found.estimates[0].df, " and ".join(covers)


def _half_width(stderr: float | None, df: float | None) -> float | None:
    """Half of the 95 % interval."""
    if stderr is None or df is None:
        return None
    from ..experiment.statistics.student_t import t_quantile

    return t_quantile(0.975, df) * stderr
