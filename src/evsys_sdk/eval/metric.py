"""Metrics: many scored samples in, one number with its standard error out.

    metric = build_metric("pass@3")
    metric([TaskSamples("t1", [Sample(1.0), Sample(0.0), Sample(0.0)]), ...])
    # MetricValue(value=..., stderr=..., n_tasks=..., n_samples=...)

Your own metric has a method `compute`; what it receives is recognised by its signature:

    compute(task_rewards)             one inner list per task, one reward per sample
    compute(*, predictions, targets)  one text per sample; `metadata` next to them is that of their tasks
    compute(*, tasks)                 `TaskSamples`, for what is in neither: cost, time, tokens
"""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from ..config.building import build_extension
from ..config.specs import MetricSpec
from ..errors import EvalError
from ..registry import get_metric
from .metrics.passing import PassMetric
from .samples import ScoredSample, TaskSamples, drop_failed, metadata, predictions, targets, task_rewards

__all__ = ["BuiltMetric", "MetricValue", "ScoredSample", "TaskSamples", "build_metric"]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A score and how sure it is."""

    value: float
    stderr: float | None
    """Clustered by task; None where it cannot be known, as with a single task."""
    n_tasks: int
    n_samples: int
    n_missing: int = 0
    """Samples that failed and were left out."""
    per_task: tuple[float, ...] | None = field(default=None, repr=False)
    """The score of each task, where `value` is their mean; what paired comparisons are made of."""
    low: float | None = None
    """Lower end of the 95 % interval; None where the score is no mean of values between 0 and 1."""
    high: float | None = None

    @classmethod
    def of(cls, per_task: Sequence[float], *, n_samples: int, n_missing: int = 0) -> Self:
        """The mean of one value for each task, with its errors."""
        low, high = interval_of_mean(per_task) or (None, None)
        mean, error = statistics.fmean(per_task), stderr_of_mean(per_task)
        return cls(mean, error, len(per_task), n_samples, n_missing, tuple(per_task), low, high)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the single tasks."""
        return {key: value for key, value in asdict(self).items() if key != "per_task"}


@dataclass(frozen=True, slots=True)
class BuiltMetric:
    """A metric that is ready to compute: found, given its params, and called as its signature wants."""

    name: str
    compute: Callable[[Sequence[TaskSamples]], float]
    inputs: frozenset[str] = frozenset({"task_rewards"})
    """What it is computed from, by the names that `compute` can ask for."""
    k: int = 1
    """How many samples of each task it needs."""
    needs_price: bool = False
    """Whether it adds up what answers cost, which not every model's answers have."""

    def __call__(self, tasks: Sequence[TaskSamples]) -> MetricValue:
        """The score of `tasks` with its standard error, without the samples that failed."""
        kept, n_missing = drop_failed(tasks, f"metric '{self.name}'")
        value = self._value(kept)
        n_samples = sum(len(task.samples) for task in kept)
        # Where the score is the mean of what each task scores by itself, its error follows from those. Any other
        # statistic, such as a ratio, shows its error by how it moves when tasks are left out.
        alone = self._each_alone(kept)
        if alone is not None and math.isclose(statistics.fmean(alone), value, rel_tol=1e-9, abs_tol=1e-12):
            return replace(MetricValue.of(alone, n_samples=n_samples, n_missing=n_missing), value=value)
        return MetricValue(value, jackknife_stderr(self._value, kept), len(kept), n_samples, n_missing)

    def _value(self, tasks: Sequence[TaskSamples]) -> float:
        try:
            value = float(self.compute(tasks))
        except EvalError as error:
            raise EvalError(f"metric '{self.name}': {error}") from error
        except Exception as error:
            raise EvalError(f"metric '{self.name}' failed: {type(error).__name__}: {error}.") from error
        if not math.isfinite(value):
            raise EvalError(f"metric '{self.name}' returned {value}. A metric returns a finite number.")
        return value

    def _each_alone(self, tasks: Sequence[TaskSamples]) -> list[float] | None:
        """The score of each task by itself; None for a metric that has none for some task."""
        try:
            return [self._value([task]) for task in tasks]
        except EvalError:
            return None


def build_metric(what: MetricSpec | str) -> BuiltMetric:
    """The metric that a `{kind, params}` block or a name such as `pass@3` stands for."""
    name, params = (what, dict[str, Any]()) if isinstance(what, str) else (what.kind, what.params)
    metric: Any = get_metric(name)
    if isinstance(metric, type):
        metric = build_extension(metric, params, what=f"metric '{name}'", path=f"metric '{name}': params")
    function = getattr(metric, "compute", metric)
    if not callable(function):
        raise EvalError(f"metric '{name}' has no method 'compute'. Write compute(self, task_rewards) -> float.")
    compute, inputs = _by_signature(name, function)
    needs_price = getattr(metric, "expense", None) == "cost_usd"
    return BuiltMetric(name, compute, inputs, metric.k if isinstance(metric, PassMetric) else 1, needs_price)


type _Compute = Callable[[Sequence[TaskSamples]], float]


def _by_signature(name: str, compute: Callable[..., Any]) -> tuple[_Compute, frozenset[str]]:
    parameters = list(inspect.signature(compute).parameters.values())
    wanted = [parameter.name for parameter in parameters if parameter.name in _INPUTS]
    kinds = {parameter.kind for parameter in parameters}
    if any(parameter.name in ("predictions", "targets") for parameter in parameters) or kinds <= _KEYWORD_ONLY:
        wanted = wanted or ["predictions", "targets"]
        unknown = [
            parameter.name for parameter in parameters if _is_required(parameter) and parameter.name not in _INPUTS
        ]
        if unknown:
            raise EvalError(f"metric '{name}' asks for '{unknown[0]}'. It can ask for: {', '.join(_INPUTS)}.")
        return lambda tasks: compute(**{key: _INPUTS[key](tasks) for key in wanted}), frozenset(wanted)
    return lambda tasks: compute(task_rewards(tasks)), frozenset({"task_rewards"})


_KEYWORD_ONLY = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable


_INPUTS: dict[str, Callable[[Sequence[TaskSamples]], Any]] = {
    "task_rewards": task_rewards,
    "predictions": predictions,
    "targets": targets,
    "metadata": metadata,
    "tasks": list,
}
"""What `compute` can ask for by name."""


# How sure a score is. Tasks are what was drawn, so they are the clusters; samples of one task are not independent.

_MOST_GROUPS = 200
"""How often a statistic is computed for its error; each time it goes over nearly all tasks."""
_Z = 1.959964


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval (Wilson's, by tasks) of a mean of values between 0 and 1; None for values of any other kind.

    It is honest also where all tasks agree and the standard error is 0. Values between 0 and 1 vary at most as much as
    zeros and ones of the same mean, so it is never too narrow.
    """
    n = len(values)
    if n == 0 or not all(0 <= value <= 1 for value in values):
        return None
    return share_interval(statistics.fmean(values), n)


def share_interval(mean: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was observed `n` times."""
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def stderr_of_mean(values: Sequence[float]) -> float | None:
    """Standard error of the mean of one value per task; None for a single task, which says nothing about others."""
    return None if len(values) < 2 else statistics.stdev(values) / math.sqrt(len(values))


def jackknife_stderr[T](statistic: Callable[[Sequence[T]], float], tasks: Sequence[T]) -> float | None:
    """Standard error of any smooth statistic, from how it changes when tasks are left out.

    For a mean it equals `stderr_of_mean`. Many tasks are left out in groups, which costs little precision. None where
    it cannot be known: a single task, or a statistic that has no value without some of the tasks.
    """
    groups = min(len(tasks), _MOST_GROUPS)
    if groups < 2:
        return None
    try:
        left = [statistic([task for at, task in enumerate(tasks) if at % groups != group]) for group in range(groups)]
    except (ValueError, ArithmeticError, IndexError):
        return None
    if not all(math.isfinite(value) for value in left):
        return None
    return math.sqrt((groups - 1) / groups * sum((value - statistics.fmean(left)) ** 2 for value in left))
