"""The score of each run and the best run, from the conclusion or, without one, from the recorded scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runs import RunRecord
from ..values import Object, items, number, part, text, whole
from .model import RunView
from .question import is_score, resolve_metric, success_metric

type ArmScore = tuple[float, int | None]
"""The score of an arm, and its step if the arm has not completed."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class Outcome:
    """The scores of an experiment."""

    metric: str
    mode: str
    best_run: str
    best: RunView
    runs: list[RunView]
    """With their scores only."""
    arms: dict[str, ArmScore | None]
    """Arm name -> score; None without one."""


def outcome_of(conclusion: Object, config: Object, arms: Sequence[RunRecord]) -> Outcome:
    """The outcome of the conclusion, completed by recorded scores, also of interrupted arms."""
    own_metric, own_mode = find_deciding_metric(config, arms)
    metric, mode = text(conclusion.get("metric")) or own_metric, text(conclusion.get("mode")) or own_mode
    concluded = {run.run: run for run in _read_concluded_runs(conclusion)}
    score = number(conclusion.get("best_score"))
    if (
        metric != own_metric and own_metric and not is_score(metric)
    ):  # a loss does not measure success of a recipe with rewards
        metric, mode, concluded, score = own_metric, own_mode, {}, None
    scored = {arm.name: latest_score(arm, metric) for arm in arms}
    by_run: dict[str, list[RunRecord]] = {}
    for arm in arms:
        by_run.setdefault(arm.run, []).append(arm)
    # A conclusion has no scores of runs that have not completed.
    scoreless = [name for name in by_run if name not in concluded or concluded[name].score is None]
    plain = {name: _plain_score(name, by_run[name], scored, metric) for name in scoreless}
    unconcluded = {name for name, run in plain.items() if name not in concluded or run.step is not None}
    runs = [plain[name] if name in unconcluded else concluded[name] for name in {**concluded, **plain}]
    ranked = [run for run in runs if run.run in by_run or not by_run]  # without runs of a parent experiment
    best_run = _best_run(conclusion, ranked, unconcluded, mode)
    best = next((run for run in runs if run.run == best_run), None)
    if best_run and score is not None and (best is None or best.score is None):
        best = RunView(best_run, score=score)
    return Outcome(metric, "min" if mode == "min" else "max", best_run, best or RunView(""), runs, scored)


def _best_run(conclusion: Object, runs: Sequence[RunView], unconcluded: set[str], mode: str) -> str:
    """The best run of the conclusion, unless a run that it has no score of scored higher."""
    best = text(conclusion.get("best_arm"))
    if best and runs and all(run.run != best for run in runs):  # it is a run of the parent experiment
        return best_of([run for run in runs if not run.failures], mode)
    usable = [run for run in runs if not run.failures and (not conclusion or run.run == best or run.run in unconcluded)]
    scored = [run for run in usable if run.score is not None]
    if conclusion and not any(run.run in unconcluded for run in scored):
        return best
    return best_of(scored, mode) or best


def find_deciding_metric(config: Object, arms: Sequence[RunRecord]) -> tuple[str, str]:
    """Full name and direction of the metric that ranks runs, also if none of them has completed.

    Without a benchmark it is the metric by which the recipe selects its best checkpoint.
    """
    name, mode = success_metric(part(config, "metadata"))
    metric = resolve_metric(name, known_metrics(arms))
    return (metric, mode) if metric else _selection_metric(arms)


def known_metrics(arms: Iterable[RunRecord]) -> Iterable[str]:
    """The metrics of ended arms, and the scores of unfinished ones."""
    metrics: dict[str, float | None] = {}
    for arm in arms:
        metrics |= arm.metrics
        if arm.status != "completed":
            metrics |= {metric: None for metric, _, _, _ in arm.scores if is_score(metric)}
    return metrics


def _selection_metric(arms: Sequence[RunRecord]) -> tuple[str, str]:
    for arm in arms:
        notes = part(arm.result or {}, "extras") if arm.metrics else {}
        if measure := text(notes.get("selection_metric")):
            name = measure if measure in arm.metrics else f"final_{measure}"
            return (name if name in arm.metrics else measure), text(notes.get("selection_mode")) or "min"
    return "", "max"


def latest_score(arm: RunRecord, metric: str) -> ArmScore | None:
    """The last score of an arm; None without one."""
    if arm.status == "completed":
        value = None if arm.unscored else arm.metrics.get(metric)
        return None if value is None else (value, None)
    if arm.problem:
        return None
    points = [
        (step, value)
        for name, step, line, row in arm.scores
        if name == metric and line.get("split") != "baseline" and (value := number(row.get("value"))) is not None
    ]
    points = points or (arm.logged.get(metric, []) if metric and not is_score(metric) else [])
    if points:
        step, value = max(points)
        return value, int(step)
    return (arm.metrics[metric], int(arm.metrics.get("steps", 0))) if metric in arm.metrics else None


def _plain_score(run: str, seeds: Sequence[RunRecord], scored: Mapping[str, ArmScore | None], metric: str) -> RunView:
    """The mean of a run over its seeds, without an interval.

    Completed seeds count; without any, those that were scored before their end.
    """
    failures = sum(bool(arm.problem) for arm in seeds)
    scored_arms = [(arm, *score) for arm in seeds if (score := scored[arm.name]) is not None]
    good = [scored_arm for scored_arm in scored_arms if scored_arm[2] is None] or scored_arms
    if not good:
        return RunView(run, failures=failures)
    mean = sum(value for _, value, _ in good) / len(good)
    tasks = whole(good[0][0].metrics.get(f"{metric.rpartition('/')[0]}/tasks"))
    step = min((step for _, _, step in good if step is not None), default=None)
    return RunView(run, score=mean, n_seeds=len(good), n_tasks=tasks, failures=failures, step=step)


def best_of(runs: Sequence[RunView], mode: str) -> str:
    """The run with the best mean; the earlier one in a tie."""
    sign = 1 if mode == "min" else -1
    scored = [run for run in runs if run.score is not None]
    return min(scored, key=lambda run: sign * (run.score or 0.0)).run if scored else ""


def _read_concluded_runs(conclusion: Object) -> list[RunView]:
    rows = [part(raw) for raw in items(conclusion.get("runs"))]
    repeated = any((number(row.get("n_seeds")) or 0) > 1 for row in rows)  # seed variance is pooled over runs
    return [
        RunView(
            text(row.get("name")),
            is_baseline=row.get("is_baseline") is True,
            score=number(row.get("mean")),
            low=(low := number(row.get("low"))),
            high=number(row.get("high")),
            covers="" if low is None else "tasks and seeds" if repeated else "tasks",
            selection_score=number(row.get("selection_score")),
            n_seeds=whole(row.get("n_seeds")) or 0,
            n_tasks=whole(row.get("n_tasks")),
            n_samples=whole(row.get("n_samples")),
            failures=whole(row.get("failures")) or 0,
        )
        for row in rows
        if text(row.get("name"))
    ]
