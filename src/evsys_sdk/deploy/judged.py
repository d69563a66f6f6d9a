"""The scores by task that the gate compares, of exactly the weights that would be shipped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..experiment.hypothesis import is_rate
from ..experiment.statistics.student_t import t_quantile
from ..experiment.statistics.two_level import RunScores, contrast
from ..record.run_files.scores import metric_name, task_scores
from ..record.runs import RunRecord
from ..record.values import Object, items, number, part, text
from ..record.view.question import Question, split_of
from .deployments import Deployments
from .source import Source, find_source, hash_weights

BASE = "base"
"""The model before training, as the candidate's own experiment scored it."""


@dataclass(frozen=True, slots=True)
class ScoredMetric:
    """The score of some weights on one metric."""

    value: float
    by_task: dict[str, float]
    clusters: dict[str, str]
    question: Question
    """Metric, split, full hash of the tasks, model and backend; the direction only for the experiment's own metric."""
    problem: str = ""
    """Why the score does not cover all tasks; empty if it does."""
    costs: dict[str, float] = field(default_factory=dict[str, float])
    """Per task: tokens, seconds, usd."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Weights with all their scores."""

    label: str
    weights_sha256: str
    scores: dict[str, ScoredMetric]
    reference: str = ""
    """Reference with which `find_judged` finds the same scores later."""


def judge_source(source: Source) -> Judged:
    """The scores of the checkpoint that would be shipped."""
    step = _step_of(source)
    lines = ((metric, line, value) for metric, at, line, value in source.arm.scores if at == step)
    label = f"{source.experiment}/{source.arm.name}@{source.checkpoint}"
    scores = _collect(source, ((m, s, v) for m, s, v in lines if s.get("split") != "baseline"))
    return Judged(label, source.sha256, scores, f"{source.detail.folder}/{source.arm.name}")


def judge_base(source: Source) -> Judged:
    """The scores of the model before training, under the same metric names."""
    scores = _collect(source, _baseline_lines(source.arm))
    if not scores:
        raise DataError(
            f"{source.detail.folder}: the model before training was not scored there. Add `models: [base]` to its "
            "benchmarks, or name what to compare with."
        )
    return Judged(f"{source.experiment}/{BASE}", _start_of(source), scores, BASE)


def _start_of(source: Source) -> str:
    """The hash of the checkpoint that training started from, or `base:` and the name of the base model."""
    start = text(part(source.arm.result, "hparams", "model").get("init_from_checkpoint"))
    return hash_weights(Path(start)) if start and Path(start).is_dir() else f"base:{source.base_model}"


def find_judged(reference: str, candidate: Source) -> Judged:
    """The scores of `base`, of a deployment by name or id, or of an experiment or arm (CURRENT on the command line)."""
    if reference == BASE:
        return judge_base(candidate)
    deployments = Deployments.read()
    if reference in deployments.live or any(entry.id == reference for entry in deployments.all):
        shipped = deployments.find(reference)
        source = find_source(
            f"{text(shipped.source.get('path'))}/{text(shipped.source.get('arm'))}",
            checkpoint=text(shipped.source.get("checkpoint")),
        )
        # The folder may hold other weights, with other scores, since the deployment was shipped.
        if source.sha256 != shipped.source.get("weights_sha256"):
            raise DataError(f"{source.weights}: these are not the weights that {shipped.id} was shipped from.")
        return replace(judge_source(source), reference=shipped.id)
    return judge_source(find_source(reference))


@dataclass(frozen=True, slots=True)
class Gap:
    """Candidate minus current on one metric, positive if the candidate is better."""

    estimate: float
    low: float
    high: float
    n_tasks: int


def measure_gap(candidate: ScoredMetric, current: ScoredMetric, *, error: float, lower_is_better: bool) -> Gap | str:
    """The difference with its interval from task sampling variance alone; or the reason why it cannot be measured."""
    tasks = sorted(set(candidate.by_task) & set(current.by_task))
    if other := _find_difference(candidate.question, current.question):
        return other
    if len(tasks) < 2:
        return "there are no scores by task to compare"
    if len(tasks) < max(len(candidate.by_task), len(current.by_task)):
        return f"only {len(tasks)} of {max(len(candidate.by_task), len(current.by_task))} tasks have both scores"
    names = [candidate.clusters.get(task) or f"task {task}" for task in tasks]
    # Tasks of one cluster are correlated; tasks without clusters need no grouping.
    clusters = np.unique(names, return_inverse=True)[1] if len(set(names)) < len(names) else None
    sign = -1.0 if lower_is_better else 1.0
    both = [np.array([[sign * score.by_task[task] for task in tasks]]) for score in (current, candidate)]
    # `is_level`, because equal scores on a few tasks do not show that all tasks score the same.
    current_run = RunScores(both[0], trained=False, is_level=True, clusters=clusters)
    difference = contrast([current_run, RunScores(both[1], trained=False, clusters=clusters)], [-1.0, 1.0])
    if difference is None:
        return "the variance of its scores is not known"
    half = t_quantile(1 - error, difference.df) * difference.stderr
    most = 1.0 if is_rate(candidate.question.metric) else math.inf  # largest possible difference
    return Gap(difference.value, max(difference.value - half, -most), min(difference.value + half, most), len(tasks))


def _find_difference(first: Question, second: Question) -> str:
    """The first difference that makes two scores incomparable; empty if there is none."""
    for name in ("metric", "split", "tasks", "model", "backend"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine != theirs:
            shown = f"sha256 {mine[:12]} and {theirs[:12]}" if name == "tasks" else f"{mine or '?'} and {theirs or '?'}"
            return f"the {name if name.endswith('s') else f'{name}s'} differ ({shown})"
    return ""


def _step_of(source: Source) -> float:
    line = next((line for line in source.arm.checkpoints if text(line.get("name")) == source.checkpoint), None)
    step = number((line or {}).get("next_step"))
    if step is None:
        raise DataError(f"{source.arm.folder}: its record has no step of the checkpoint {source.checkpoint}.")
    return step


def _baseline_lines(arm: RunRecord) -> Iterator[tuple[str, Object, Object]]:
    for line in arm.score_lines:
        split, _, rest = text(line.get("name")).partition("/")
        name, _, model = rest.rpartition("/")
        if line.get("split") == "baseline" and model == BASE:
            for metric, value in part(line, "metrics").items():
                yield metric_name(split, name, metric), line, part({"it": value}, "it")


def _collect(source: Source, lines: Iterator[tuple[str, Object, Object]]) -> dict[str, ScoredMetric]:
    view = source.detail.view
    run = view.run(source.arm.run)
    # Model and backend of the run, because an experiment may compare several models.
    model, backend = (run.model, run.backend) if run is not None else ("", "")
    scores: dict[str, ScoredMetric] = {}
    for metric, line, value in lines:
        direction = view.question.direction if view.question.metric == metric else ""
        question = Question(metric, split_of(metric), text(line.get("sha256")), direction, model, backend)
        if (scored := _read(line, value, question)) is not None:
            scores[metric] = scored
    return scores


def _read(line: Object, value: Object, question: Question) -> ScoredMetric | None:
    score = number(value.get("value"))
    if score is None:
        return None
    tasks, groups = items(line.get("tasks")), items(line.get("clusters"))
    clusters = {str(task): group for task, group in zip(tasks, groups, strict=False) if isinstance(group, str)}
    unscored, failed = part(line, "unscored"), number(line.get("failed_samples")) or 0
    problem = f"{len(unscored)} tasks could not be scored" if unscored else ""
    if failed and not problem:
        problem = f"{failed:g} answers failed on the side of the harness"
    return ScoredMetric(score, task_scores(line, value) or {}, clusters, question, problem, _costs(line))


def _costs(line: Object) -> dict[str, float]:
    tasks = len(items(line.get("tasks"))) or 1
    amounts: dict[str, Any] = {
        "tokens_per_task": line.get("tokens"),
        "seconds_per_task": line.get("seconds"),
        "usd_per_task": line.get("cost_usd"),
    }
    return {name: value / tasks for name, raw in amounts.items() if (value := number(raw)) is not None}
