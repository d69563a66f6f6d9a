"""Effects of changes: runs of an experiment that differ in one setting only, pooled over experiments.

A pair of runs has the same model, metric and tasks, and both are completed or scored after the same step. The interval
is that of the conclusion if it compared the two, else it is computed in the same way from the recorded scores. The same
change in several experiments is pooled by inverse variance; heterogeneity widens the interval (Birge ratio).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..record.flat_config import Settings, data_source, short_axis, value_text
from ..record.values import Object, items, number, part, text

if TYPE_CHECKING:  # not needed to read the cache
    from ..record.reader import ExperimentRecord
    from ..record.runs import RunRecord
    from ..record.view.model import ExperimentView, RunView
    from ..record.view.task_scores import SetScores

_MOST_RUNS = 40
"""With more runs, each is compared with the baseline only."""
_Z = 1.959963984540054


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class Contrast:
    """The difference of two runs of an experiment that differ in one setting."""

    run: str
    """The run with the model and algorithm of the pair."""
    axis: str
    before: str
    after: str
    difference: float
    low: float | None
    high: float | None
    stderr: float | None
    df: float | None
    seeds: int
    """Seeds of the run with fewer."""


@dataclass(slots=True)
class Effect:
    """The pooled effect of a change on one question."""

    axis: str
    before: str
    after: str
    algorithm: str
    n: int = 0
    """Number of experiments."""
    total: float = 0.0
    weight: float = 0.0
    weighted: float = 0.0
    squares: float = 0.0
    df: float = 0.0
    low: float | None = None
    high: float | None = None
    n_weighed: int = 0
    seeds: int = 0
    n_up: int = 0
    n_down: int = 0
    """Number of experiments whose interval lies above zero, and below."""

    @property
    def disagrees(self) -> bool:
        """Whether one experiment shows a gain and another a loss."""
        return bool(self.n_up and self.n_down)

    @property
    def difference(self) -> float:
        return self.weighted / self.weight if self.weight else self.total / self.n

    @property
    def interval(self) -> tuple[float, float] | None:
        """The pooled 95 % interval; None if no experiment has one."""
        if not self.weight:
            return None
        if self.n_weighed == 1 and self.low is not None and self.high is not None:
            return self.low, self.high
        # Cochran's Q measures the heterogeneity of the experiments; its excess over n - 1 widens the interval (the
        # Birge ratio).
        spread = max(0.0, self.squares - self.difference**2 * self.weight)
        widened = max(1.0, spread / max(1, self.n_weighed - 1))
        half = _quantile(self.df) * math.sqrt(widened / self.weight)
        return self.difference - half, self.difference + half

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero and covers seed variance."""
        interval = self.interval
        return interval is not None and (interval[0] > 0 or interval[1] < 0) and self.seeds > 1


def contrasts_of(record: ExperimentRecord, view: ExperimentView) -> list[Contrast]:
    """The contrasts of an experiment: pairs of runs that differ in one setting."""
    if not view.metric:
        return []
    return find_contrasts(record.settings, record.conclusion, view, record.runs)


def find_contrasts(
    settings: Mapping[str, Settings], conclusion: Object, view: ExperimentView, arms: Sequence[RunRecord]
) -> list[Contrast]:
    """The pairs of runs that differ in one setting; `settings` by run."""
    scored = {run.run: run for run in view.runs if run.score is not None and not run.failures}
    names = [name for name in settings if name in scored]
    baseline = next((name for name in names if scored[name].is_baseline), "")
    pairs = itertools.combinations(names, 2)
    if len(names) > _MOST_RUNS:
        pairs = ((baseline, name) for name in names if baseline and name != baseline)
    # Runs that are equal in all but one axis. Each is compared with one reference run, because other differences
    # follow from these.
    slices: dict[tuple[str, frozenset[tuple[str, str]]], dict[str, str]] = {}
    for first, second in pairs:
        if change := find_changed_axis(settings[first], settings[second]):
            axis, paths = change
            rest = frozenset(pair for pair in settings[first].items() if pair[0] not in paths)
            values = slices.setdefault((axis, rest), {})
            values |= {name: _axis_value(axis, settings[name]) for name in (first, second)}
    differences = _Differences(conclusion, view, arms, scored)
    contrasts: list[Contrast] = []
    for (axis, _), values in slices.items():
        reference = baseline if baseline in values else next(name for name in names if name in values)
        for name in names:
            if name in values and name != reference:
                contrasts += differences.contrast(axis, reference, name, values)
    return contrasts + _trend(conclusion, contrasts, names)


def find_changed_axis(first: Settings, second: Settings) -> tuple[str, set[str]] | None:
    """The only setting in which two runs differ, with its paths; None for none, several, or the model."""
    paths = {path for path, _ in first.items() ^ second.items()}
    if not paths or "model.name" in paths:
        return None
    if len(paths) == 1:
        return short_axis(next(iter(paths))), paths
    recipe = ("algorithm.", "data.transforms")  # another recipe may need other transforms
    if "algorithm.kind" in paths and all(path.startswith(recipe) for path in paths):
        return "algorithm", {path for path in {*first, *second} if path.startswith(recipe)}
    if all(path.startswith("data.") for path in paths) and any("transforms" not in path for path in paths):
        return "data", {path for path in {*first, *second} if path.startswith("data.")}
    return None


def _axis_value(axis: str, settings: Settings) -> str:
    if axis == "algorithm":
        return value_text(settings.get("algorithm.kind", '""'))
    if axis == "data":
        return data_source(settings)
    value = next((value for path, value in settings.items() if short_axis(path) == axis), None)
    return "unset" if value is None else value_text(value)


class _Differences:
    """The differences between runs of an experiment."""

    def __init__(
        self, conclusion: Object, view: ExperimentView, arms: Sequence[RunRecord], scored: Mapping[str, RunView]
    ) -> None:
        rows = [part(raw) for raw in items(conclusion.get("comparisons"))]
        self._compared = {text(row.get("run")): row for row in rows}
        self._metric, self._arms, self._scored = view.metric, arms, scored

    def contrast(self, axis: str, reference: str, name: str, values: Mapping[str, str]) -> list[Contrast]:
        runs = (self._scored[reference], self._scored[name])
        seeds = min(run.n_seeds for run in runs)
        result = self._concluded_difference(reference, name) or self._compare_pairs(*runs)
        if result is None:
            return []
        difference, low, high, stderr, df = result
        before, after = values[reference], values[name]
        if in_order(after) < in_order(before):  # a canonical order, to pool over experiments
            before, after, difference = after, before, -difference
            low, high = (None, None) if low is None or high is None else (-high, -low)
        return [Contrast(reference, axis, before, after, difference, low, high, stderr, df, seeds)]

    def _concluded_difference(self, reference: str, name: str) -> _Difference | None:
        row = self._compared.get(name, {}) if self._scored[reference].is_baseline else {}
        difference = number(row.get("difference"))
        if difference is None:
            return None
        ends = [(number(row.get(f"{kind}low")), number(row.get(f"{kind}high"))) for kind in ("plain_", "")]
        low, high = next((pair for pair in ends if None not in pair), (None, None))
        if low is None or high is None:
            return difference, None, None, None, None
        df = number(row.get("df"))
        return difference, low, high, (high - low) / 2 / _quantile(df), df  # the standard error from the interval

    def _compare_pairs(self, first: RunView, second: RunView) -> _Difference | None:
        """The difference from the recorded scores: the last ones of completed runs, else those of the same step."""
        from .pairs import pair_scores

        pair = [[arm for arm in self._arms if arm.run == run.run and not arm.problem] for run in (first, second)]
        step = None
        if first.step is not None or second.step is not None:
            common = [self._steps(arm) for arms in pair for arm in arms if self._steps(arm)]
            shared = common[0].intersection(*common[1:]) if common else set[float]()
            if not shared:
                return None
            step = max(shared)
        sets = [self._set(arms, step) for arms in pair]
        if any(not scores.totals for scores in sets):
            return None
        difference = pair_scores(self._metric, sets[0], sets[1])
        return difference.difference, difference.low, difference.high, difference.stderr, difference.df

    def _steps(self, arm: RunRecord) -> set[float]:
        return {step for metric, step, _, _ in arm.scores if metric == self._metric}

    def _set(self, arms: Sequence[RunRecord], step: float | None) -> SetScores:
        """The scores of a run's seeds, after a step or at their end."""
        from ..record.view.task_scores import SetScores, add_score

        scores_by_metric: dict[str, SetScores] = {}
        for arm in arms:
            scorings = [(at, line, value) for metric, at, line, value in arm.scores if metric == self._metric]
            scorings = [scoring for scoring in scorings if step is None or scoring[0] == step]
            if scorings:
                add_score(scores_by_metric, self._metric, *max(scorings, key=lambda scoring: scoring[0])[1:])
            elif step is None and self._metric in arm.metrics:
                add_score(scores_by_metric, self._metric, {}, {"value": arm.metrics[self._metric]})
        return scores_by_metric.get(self._metric, SetScores(""))


type _Difference = tuple[float, float | None, float | None, float | None, float | None]


def _trend(conclusion: Object, contrasts: Sequence[Contrast], names: Sequence[str]) -> list[Contrast]:
    """The trend of the conclusion as a contrast, for an axis with random values, which no two runs differ in alone."""
    trend = part(conclusion, "trend")
    axis, change = short_axis(text(trend.get("axis"))), number(trend.get("change"))
    if not names or not axis or change is None or any(contrast.axis == axis for contrast in contrasts):
        return []
    ends = [value_text(json.dumps(trend.get(end))) for end in ("first", "last")]
    low, high = number(trend.get("low")), number(trend.get("high"))
    stderr = None if low is None or high is None else (high - low) / 2 / _Z
    return [Contrast(names[0], axis, ends[0], ends[1], change, low, high, stderr, None, 2)]


def in_order(value: str) -> tuple[bool, float, str]:
    """The sort key of a value: numbers by size, before text."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def _quantile(df: float | None) -> float:
    """The 97.5 % quantile of Student's t; of the normal distribution without degrees of freedom."""
    if not df or df <= 0:
        return _Z
    from ..experiment.statistics.student_t import t_quantile

    # Large degrees of freedom are rounded, because quantiles are cached.
    return t_quantile(0.975, df if df < 30 else float(f"{min(df, 1000.0):.1e}"))
