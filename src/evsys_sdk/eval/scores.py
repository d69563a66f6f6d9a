"""The result of a benchmark: scores with their standard errors, what could not be scored, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from ..data.types import HarborTask
from ..errors import EvsysError, show
from ..log import get_logger
from ..record.events import note_finding
from .answers.answer import extract_answer
from .metric import BuiltMetric, MetricValue
from .predictions import Prediction
from .samples import ScoredSample, TaskSamples

type Breakdown = dict[str, dict[str, dict[str, MetricValue]]]
"""Metadata key -> its value -> metric -> score."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The scores of a model on a benchmark."""

    benchmark: str
    sha256: str
    """Hash of all tasks of the benchmark, even if `n_tasks` limits the scored ones."""
    model: str
    predictions: list[Prediction]
    """One for each sample of each task, in the order of the tasks."""
    metrics: dict[str, MetricValue] = field(default_factory=dict[str, MetricValue])
    """Over the scored tasks."""
    breakdown: Breakdown = field(default_factory=dict[str, dict[str, dict[str, MetricValue]]])
    unscored: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks whose samples all failed because of infrastructure -> reason."""
    metric_errors: dict[str, str] = field(default_factory=dict[str, str])
    """Metrics that could not be computed -> reason."""
    seconds: float = 0.0
    samples: int = 1
    """Planned attempts per task."""
    clusters: dict[str, str] = field(default_factory=dict[str, str])
    """Task -> cluster, for tasks that have one; answers within a cluster are correlated."""

    @property
    def n_tasks(self) -> int:
        return len({prediction.task_id for prediction in self.predictions})

    @property
    def n_failed(self) -> int:
        """Samples that failed because of infrastructure; they do not count as 0."""
        return sum(prediction.failed for prediction in self.predictions)

    @property
    def tokens(self) -> int:
        return sum(prediction.tokens for prediction in self.predictions)

    @property
    def cost_usd(self) -> float | None:
        """Total cost; None if the price of any sample is unknown."""
        costs = [prediction.cost_usd for prediction in self.predictions]
        return None if None in costs or not costs else sum(cost for cost in costs if cost is not None)

    @property
    def problem(self) -> str | None:
        """One sentence on why the benchmark is not completely scored; None if it is."""
        if self.unscored:
            task_id, reason = next(iter(self.unscored.items()))
            return f"{len(self.unscored)} of {self.n_tasks} tasks could not be scored, first '{task_id}': {reason}"
        return "; ".join(self.metric_errors.values()) or None

    @property
    def saturated(self) -> float | None:
        """0 or 1 if every sample has exactly that reward, so that the tasks do not separate models."""
        rewards = {prediction.reward for prediction in self.predictions if prediction.reward is not None}
        [only] = rewards if len(rewards) == 1 else [None]
        return only if only in (0.0, 1.0) and self.n_tasks > 1 else None

    @property
    def note(self) -> str | None:
        """One sentence on why the scores may mislead: saturation or truncated answers."""
        cut_off = sum(each.status == "truncated" for each in self.predictions) / max(len(self.predictions), 1)
        remark = (
            f"{cut_off:.0%} of the answers to '{self.benchmark}' are cut off: raise max_tokens, or train for longer"
            if cut_off >= 0.5
            else ""
        )
        if self.saturated is None:
            return f"{remark}." if remark else None
        first = next(each for each in self.predictions if not each.failed)
        fact = f"every answer to the {self.n_tasks} tasks of '{self.benchmark}' scores {self.saturated:g}"
        remedy = "Harder tasks would tell models apart."
        if not self.saturated:
            remedy = "Check that the verifier reads answers in the form the model writes them."
            remedy = f"{remark}." if remark else remedy
        return f"{fact}, for example {show(first.text)} on task '{first.task_id}'. {remedy}"

    @property
    def task_rewards(self) -> list[list[float]]:
        """The rewards of each scored task."""
        return [
            [sample.reward for sample in task.samples if sample.reward is not None]
            for task in task_samples(self.predictions)
            if not all(sample.failed for sample in task.samples)
        ]

    @property
    def flat_metrics(self) -> dict[str, float]:
        """All numbers by name: scores, number of tasks, `<metric>/stderr`, and `<key>=<value>/<metric>`.

        `failed_samples` and `unscored_tasks` are present only if they are above 0.
        """
        flat = {name: score.value for name, score in self.metrics.items()} | {"tasks": float(self.n_tasks)}
        failures = {"failed_samples": float(self.n_failed), "unscored_tasks": float(len(self.unscored))}
        flat |= {name: count for name, count in failures.items() if count}
        flat |= {f"{name}/stderr": score.stderr for name, score in self.metrics.items() if score.stderr is not None}
        for key, groups in self.breakdown.items():
            for value, scores in groups.items():
                flat |= {f"{key}={value}/{name}": score.value for name, score in scores.items()}
        return flat

    def per_task(self) -> dict[str, Any]:
        """Per-task values as parallel lists, for statistics over tasks, clusters and failures.

        `samples` has an entry for every planned attempt, null if it failed because of infrastructure.
        """
        rewards: dict[str, list[float | None]] = {}
        for prediction in self.predictions:
            rewards.setdefault(prediction.task_id, []).append(prediction.reward)
        tasks = [task for task in rewards if task not in self.unscored]
        return {
            "tasks": tasks,
            "clusters": [self.clusters.get(task) for task in tasks],
            "samples": [rewards[task] for task in tasks],
            "samples_expected": self.samples,
            "samples_obtained": [sum(reward is not None for reward in rewards[task]) for task in tasks],
            "saturated": self.saturated,
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without predictions."""
        scores = {name: score.to_dict() for name, score in self.metrics.items()}
        groups = {
            key: {value: {name: score.to_dict() for name, score in group.items()} for value, group in by_value.items()}
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
            "saturated": self.saturated,
            "note": self.note,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
            "seconds": self.seconds,
        }


def task_samples(predictions: Sequence[Prediction], tasks: Mapping[str, HarborTask] | None = None) -> list[TaskSamples]:
    """Predictions grouped by task, the input of metrics."""
    groups: dict[str, list[ScoredSample]] = {}
    for prediction in predictions:
        groups.setdefault(prediction.task_id, []).append(
            ScoredSample(
                reward=prediction.reward,
                prediction=None if prediction.failed else extract_answer(prediction.text),
                cost_usd=prediction.cost_usd,
                seconds=prediction.seconds,
                tokens=prediction.tokens,
            )
        )
    by_id = tasks or {}
    return [_task_samples(task_id, samples, by_id.get(task_id)) for task_id, samples in groups.items()]


def _task_samples(task_id: str, samples: Sequence[ScoredSample], task: HarborTask | None) -> TaskSamples:
    if task is None:
        return TaskSamples(task_id, samples)
    expected: Any = getattr(task.verifier, "expected", None)
    # The answer is extracted from both texts before they are compared.
    target = extract_answer(expected) if isinstance(expected, str) else expected
    return TaskSamples(task_id, samples, target, task.metadata)


def compute_scores(
    result: EvalResult,
    tasks: Sequence[HarborTask],
    metrics: Mapping[str, BuiltMetric],
    breakdown_keys: Sequence[str] = (),
) -> EvalResult:
    """Add metrics to a result; a task without any reward is excluded and listed as unscored."""
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
    return replace(result, metrics=values, breakdown=breakdown, unscored=reasons, metric_errors=errors)


def warn_of_zeros(result: EvalResult, run_dir: Path | None, step: int) -> None:
    """Report that every answer scores 0: in the record of the run, and on the terminal once per experiment."""
    note = result.note
    if result.saturated != 0 or note is None:
        return
    is_news = run_dir is None or note_finding(run_dir, step=step, finding=f"zero {result.benchmark}", text=note)
    get_logger(__name__).log(WARNING if is_news else INFO, "%s", note)


def _values(
    metrics: Mapping[str, BuiltMetric], tasks: Sequence[TaskSamples]
) -> tuple[dict[str, MetricValue], dict[str, str]]:
    values: dict[str, MetricValue] = {}
    errors: dict[str, str] = {}
    for name, metric in metrics.items() if tasks else ():
        try:
            values[name] = metric(tasks)
        except EvsysError as error:  # the other metrics are still computed
            errors[name] = str(error)
    return values, errors
