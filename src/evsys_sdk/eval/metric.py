"""Metrics: from scored samples to one value with its standard error.

    metric = build_metric("pass@3")
    metric([TaskSamples("t1", [Sample(1.0), Sample(0.0), Sample(0.0)]), ...])
    # MetricValue(value=..., stderr=..., n_tasks=..., n_samples=...)

A custom metric has a method `compute`; its signature selects what it receives:

    compute(task_rewards)             one inner list per task, one reward per sample
    compute(*, predictions, targets)  one text per sample; `metadata` adds that of their tasks
    compute(*, tasks)                 `TaskSamples`, for cost, time and tokens
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
    """A score and its uncertainty."""

    value: float
    stderr: float | None
    """Clustered by task; None where it cannot be estimated, as with a single task."""
    n_tasks: int
    n_samples: int
    n_missing: int = 0
    """Failed samples, which are excluded."""
    per_task: tuple[float, ...] | None = field(default=None, repr=False)
    """The score of each task, where `value` is their mean; for paired comparisons."""
    low: float | None = None
    """Lower end of the 95 % interval; None unless the score is a mean of values between 0 and 1."""
    high: float | None = None

    @classmethod
    def of(cls, per_task: Sequence[float], *, n_samples: int, n_missing: int = 0) -> Self:
        """The mean of one value per task, with standard error and interval."""
        low, high = interval_of_mean(per_task) or (None, None)
        mean, error = statistics.fmean(per_task), stderr_of_mean(per_task)
        return cls(mean, error, len(per_task), n_samples, n_missing, tuple(per_task), low, high)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the per-task values."""
        return {key: value for key, value in asdict(self).items() if key != "per_task"}


@dataclass(frozen=True, slots=True)
class BuiltMetric:
    """A metric with its params, callable on the samples of tasks."""

    name: str
    compute: Callable[[Sequence[TaskSamples]], float]
    inputs: frozenset[str] = frozenset({"task_rewards"})
    """The names of the inputs that `compute` takes."""
    k: int = 1
    """Samples needed per task."""
    needs_price: bool = False
    """Whether it sums the cost of answers, which models without a price lack."""

    def __call__(self, tasks: Sequence[TaskSamples]) -> MetricValue:
        """The score of `tasks` with its standard error; failed samples are excluded."""
        complete, n_missing = drop_failed(tasks, f"metric '{self.name}'")
        value = self._value(complete)
        n_samples = sum(len(task.samples) for task in complete)
        # If the score is the mean of per-task scores, they give the standard error. Any other statistic, such as a
        # ratio, needs the jackknife.
        per_task = self._score_each(complete)
        if per_task is not None and math.isclose(statistics.fmean(per_task), value, rel_tol=1e-9, abs_tol=1e-12):
            return replace(MetricValue.of(per_task, n_samples=n_samples, n_missing=n_missing), value=value)
        return MetricValue(value, jackknife_stderr(self._value, complete), len(complete), n_samples, n_missing)

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

    def _score_each(self, tasks: Sequence[TaskSamples]) -> list[float] | None:
        """The score of each task alone; None if the metric is undefined for some task."""
        try:
            return [self._value([task]) for task in tasks]
        except EvalError:
            return None


def build_metric(spec: MetricSpec | str) -> BuiltMetric:
    """The metric of a `{kind, params}` block or of a name such as `pass@3`."""
    name, params = (spec, dict[str, Any]()) if isinstance(spec, str) else (spec.kind, spec.params)
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
    inputs = [parameter.name for parameter in parameters if parameter.name in _INPUTS]
    kinds = {parameter.kind for parameter in parameters}
    if any(parameter.name in ("predictions", "targets") for parameter in parameters) or kinds <= _KEYWORD_ONLY:
        inputs = inputs or ["predictions", "targets"]
        unknown = [
            parameter.name for parameter in parameters if _is_required(parameter) and parameter.name not in _INPUTS
        ]
        if unknown:
            raise EvalError(
                f"metric '{name}': compute has an unknown parameter '{unknown[0]}'. Known: {', '.join(_INPUTS)}."
            )
        return lambda tasks: compute(**{key: _INPUTS[key](tasks) for key in inputs}), frozenset(inputs)
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
"""Input name of `compute` -> its value from the samples."""


# Tasks are the sampling unit, so errors are clustered by task: samples of one task are not independent.

_MOST_GROUPS = 200
"""Most jackknife groups; each one evaluates the statistic on nearly all tasks."""
_Z = 1.959964


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % Wilson interval, by tasks, of a mean of values between 0 and 1; None for any other values.

    It stays valid where all tasks agree and the standard error is 0. It is conservative: values between 0 and 1 vary at
    most as much as zeros and ones of the same mean.
    """
    n = len(values)
    if n == 0 or not all(0 <= value <= 1 for value in values):
        return None
    return share_interval(statistics.fmean(values), n)


def share_interval(mean: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion observed in `n` trials."""
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def stderr_of_mean(values: Sequence[float]) -> float | None:
    """Standard error of the mean of one value per task; None for fewer than two tasks."""
    return None if len(values) < 2 else statistics.stdev(values) / math.sqrt(len(values))


def jackknife_stderr[T](statistic: Callable[[Sequence[T]], float], tasks: Sequence[T]) -> float | None:
    """Jackknife standard error of any smooth statistic.

    For a mean it equals `stderr_of_mean`. Many tasks are left out in groups, which costs little precision. None for a
    single task, or if the statistic is undefined without some of the tasks.
    """
    groups = min(len(tasks), _MOST_GROUPS)
    if groups < 2:
        return None
    try:
        estimates = [
            statistic([task for at, task in enumerate(tasks) if at % groups != group]) for group in range(groups)
        ]
    except (ValueError, ArithmeticError, IndexError):
        return None
    if not all(math.isfinite(value) for value in estimates):
        return None
    return math.sqrt((groups - 1) / groups * sum((value - statistics.fmean(estimates)) ** 2 for value in estimates))
