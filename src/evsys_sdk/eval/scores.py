"""The result of a benchmark: scores with their standard errors, what could not be scored, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..data.types import HarborTask
from ..errors import EvsysError
from .answer import extract_answer
from .metric import MetricValue, build_metric
from .predictions import Prediction
from .samples import Sample, TaskSamples

type Breakdown = dict[str, dict[str, dict[str, MetricValue]]]
"""Metadata key -> its value -> metric -> score."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What a model scored on a benchmark."""

    benchmark: str
    sha256: str
    """Of the tasks, as they were scored."""
    model: str
    predictions: list[Prediction]
    """One for each sample of each task, in the order of the tasks."""
    metrics: dict[str, MetricValue] = field(default_factory=dict[str, MetricValue])
    """Over the tasks that could be scored."""
    breakdown: Breakdown = field(default_factory=dict[str, dict[str, dict[str, MetricValue]]])
    unscored: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks of which every sample failed on our side, and why."""
    metric_errors: dict[str, str] = field(default_factory=dict[str, str])
    """Metrics that could not be computed, and why."""
    seconds: float = 0.0

    @property
    def n_tasks(self) -> int:
        return len({prediction.task_id for prediction in self.predictions})

    @property
    def n_failed(self) -> int:
        """Samples that failed on our side; they are no zeros."""
        return sum(prediction.failed for prediction in self.predictions)

    @property
    def tokens(self) -> int:
        return sum(prediction.tokens for prediction in self.predictions)

    @property
    def cost_usd(self) -> float | None:
        """What it cost; None where some of it has no known price."""
        costs = [prediction.cost_usd for prediction in self.predictions]
        return None if None in costs or not costs else sum(cost for cost in costs if cost is not None)

    @property
    def problem(self) -> str | None:
        """Why this is not the score of the whole benchmark, in a sentence; None when it is."""
        if self.unscored:
            task_id, reason = next(iter(self.unscored.items()))
            return f"{len(self.unscored)} of {self.n_tasks} tasks could not be scored, first '{task_id}': {reason}"
        return "; ".join(self.metric_errors.values()) or None

    @property
    def task_rewards(self) -> list[list[float]]:
        """The rewards of each task that could be scored."""
        return [
            [sample.reward for sample in task.samples if sample.reward is not None]
            for task in task_samples(self.predictions)
            if not all(sample.failed for sample in task.samples)
        ]

    @property
    def flat_metrics(self) -> dict[str, float]:
        """Everything as plain numbers: scores, how many tasks, `<metric>/stderr`, and `<key>=<value>/<metric>`.

        What failed is counted in `failed_samples` and `unscored_tasks`, which are there only where something did.
        """
        flat = {name: score.value for name, score in self.metrics.items()} | {"tasks": float(self.n_tasks)}
        failures = {"failed_samples": float(self.n_failed), "unscored_tasks": float(len(self.unscored))}
        flat |= {name: count for name, count in failures.items() if count}
        flat |= {f"{name}/stderr": score.stderr for name, score in self.metrics.items() if score.stderr is not None}
        for key, groups in self.breakdown.items():
            for value, scores in groups.items():
                flat |= {f"{key}={value}/{name}": score.value for name, score in scores.items()}
        return flat

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the single predictions."""
        scores = {name: _score_dict(score) for name, score in self.metrics.items()}
        groups = {
            key: {
                value: {name: _score_dict(score) for name, score in found.items()} for value, found in by_value.items()
            }
            for key, by_value in self.breakdown.items()
        }
        return {
            "benchmark": self.benchmark,
            "sha256": self.sha256,
            "model": self.model,
            "metrics": scores,
            "breakdown": groups,
            "n_tasks": self.n_tasks,
            "n_samples": len(self.predictions),
            "failed_samples": self.n_failed,
            "unscored": self.unscored,
            "metric_errors": self.metric_errors,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
            "seconds": self.seconds,
        }


def task_samples(predictions: Sequence[Prediction], tasks: Mapping[str, HarborTask] | None = None) -> list[TaskSamples]:
    """Predictions grouped by task, as metrics want them."""
    groups: dict[str, list[Sample]] = {}
    for prediction in predictions:
        groups.setdefault(prediction.task_id, []).append(
            Sample(
                reward=prediction.reward,
                prediction=None if prediction.failed else extract_answer(prediction.text),
                cost_usd=prediction.cost_usd,
                seconds=prediction.seconds,
                tokens=prediction.tokens,
            )
        )
    known = tasks or {}
    return [
        TaskSamples(task_id, samples, getattr(getattr(known.get(task_id), "verifier", None), "expected", None))
        for task_id, samples in groups.items()
    ]


def scored(
    result: EvalResult, tasks: Sequence[HarborTask], metrics: Sequence[str], breakdown_keys: Sequence[str]
) -> EvalResult:
    """The result with its metrics; a task without any reward is left out of them and named."""
    by_id = {task.task_id: task for task in tasks}
    samples = task_samples(result.predictions, by_id)
    usable = [task for task in samples if not all(sample.failed for sample in task.samples)]
    values, errors = _values(metrics, usable)
    breakdown: Breakdown = {}
    for key in breakdown_keys:
        groups: dict[str, list[TaskSamples]] = {}
        for task in usable:
            groups.setdefault(str(by_id[task.task_id].metadata.get(key)), []).append(task)
        breakdown[key] = {value: _values(metrics, group)[0] for value, group in sorted(groups.items())}
    failed = {task.task_id for task in samples} - {task.task_id for task in usable}
    reasons = {
        each.task_id: each.error or "no reason was given" for each in result.predictions if each.task_id in failed
    }
    return EvalResult(
        result.benchmark,
        result.sha256,
        result.model,
        result.predictions,
        values,
        breakdown,
        reasons,
        errors,
        result.seconds,
    )


def _values(names: Sequence[str], tasks: Sequence[TaskSamples]) -> tuple[dict[str, MetricValue], dict[str, str]]:
    values: dict[str, MetricValue] = {}
    errors: dict[str, str] = {}
    for name in names if tasks else ():
        try:
            values[name] = build_metric(name)(tasks, missing="drop")
        except EvsysError as error:  # the other metrics are worth having
            errors[name] = str(error)
    return values, errors


def _score_dict(score: MetricValue) -> dict[str, Any]:
    return {key: value for key, value in asdict(score).items() if key != "per_task"}
