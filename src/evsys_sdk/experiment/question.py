"""The question of an experiment, computed from its config and stored before the first step."""

from __future__ import annotations

from ..config import BenchmarkEntry, ExperimentConfig
from ..config.search import success_of
from ..record.run_files.scores import metric_name
from ..record.view.question import REPORTED, Question, describe_tasks, models_and_backends, resolve_metric, split_of
from .benchmark_plan import list_reported_metrics, load_entry
from .hypothesis import find_claim


def state_question(config: ExperimentConfig) -> Question | None:
    """Metric, tasks, direction, model and backend, from the claim or else from `success_metric`.

    None for an experiment without a benchmark: its question follows from what its runs report.
    """
    claim, success, planned = find_claim(config.metadata), success_of(config.metadata), _plan_metrics(config)
    name = (claim.metric if claim else None) or (success.name if success else "")
    metric = resolve_metric(name, planned, REPORTED)
    if metric not in planned:
        return None
    direction = success.mode if success else "max"
    if claim is not None and claim.metric is not None:
        direction = "max" if claim.sign > 0 else "min"
    runs = [run.model_dump(mode="json") for run in config.all_runs()]
    tasks = _describe(planned[metric])
    return Question(metric, split_of(metric), tasks, direction, *models_and_backends(runs))


def _plan_metrics(config: ExperimentConfig) -> dict[str, BenchmarkEntry]:
    """Full name of each metric of a benchmark -> its entry."""
    return {
        metric_name(entry.role or "eval", entry.label or "", metric): entry
        for entry in config.metadata.benchmark
        for metric in list_reported_metrics(entry, config.metadata)
    }


def _describe(entry: BenchmarkEntry) -> str:
    benchmark = load_entry(entry)
    return describe_tasks(len(benchmark.tasks[: entry.n_tasks]), benchmark.sha256)
