"""What each run scored and which one is best: as concluded, or from the scores on record without a conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runs import RunRecord
from ..values import Object, items, number, part, text, whole
from .model import RunView
from .question import is_score, resolve_metric, wanted_metric

type ArmScore = tuple[float, int | None]
"""The score of an arm, and the step it is of where the arm did not come to its end."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class Outcome:
    """The scores of an experiment."""

    metric: str
    mode: str
    best_run: str
    best: RunView
    runs: list[RunView]
    """With what they scored only."""
    arms: dict[str, ArmScore | None]
    """By name; None without a score."""


def outcome_of(conclusion: Object, config: Object, arms: Sequence[RunRecord]) -> Outcome:
    """The conclusion, completed from the scores on record where it says nothing: of arms that were interrupted, too."""
    own_metric, own_mode = find_deciding_metric(config, arms)
    metric, mode = text(conclusion.get("metric")) or own_metric, text(conclusion.get("mode")) or own_mode
    concluded = {run.run: run for run in _read_concluded_runs(conclusion)}
    score = number(conclusion.get("best_score"))
    if metric != own_metric and own_metric and not is_score(metric):  # a loss says little about a recipe with a reward
        metric, mode, concluded, score = own_metric, own_mode, {}, None
    scored = {arm.name: latest_score(arm, metric) for arm in arms}
    plain = {run.run: run for run in _plain_scores(arms, scored, metric)}
    # A conclusion about ends does not tell what a run scored on the way.
    unsaid = {
        name
        for name, run in plain.items()
        if name not in concluded or (concluded[name].score is None and run.step is not None)
    }
    runs = [plain[name] if name in unsaid else concluded[name] for name in {**concluded, **plain}]
    own = [run for run in runs if run.run in plain or not plain]  # the others are those of a parent
    best_run = _best_run(conclusion, own, unsaid, mode)
    best = next((run for run in runs if run.run == best_run), None)
    if best_run and score is not None and (best is None or best.score is None):
        best = RunView(best_run, score=score)
    return Outcome(metric, "min" if mode == "min" else "max", best_run, best or RunView(""), runs, scored)


def _best_run(conclusion: Object, runs: Sequence[RunView], unsaid: set[str], mode: str) -> str:
    """What the conclusion says, unless a run that it knows no score of has a better one on record."""
    said = text(conclusion.get("best_arm"))
    if said and runs and all(run.run != said for run in runs):  # its parent's run was better than its own
        return best_of([run for run in runs if not run.failures], mode)
    usable = [run for run in runs if not run.failures and (not conclusion or run.run == said or run.run in unsaid)]
    scored = [run for run in usable if run.score is not None]
    return best_of(scored, mode) or said if not conclusion or any(run.run in unsaid for run in scored) else said


def find_deciding_metric(config: Object, arms: Sequence[RunRecord]) -> tuple[str, str]:
    """Full name and direction of the metric that ranks runs, also where none of them came to its end.

    Without a benchmark that is the measure by which the recipe itself chooses its best checkpoint.
    """
    name, mode = wanted_metric(part(config, "metadata"))
    metric = resolve_metric(name, known_metrics(arms))
    return (metric, mode) if metric else _own_measure(arms)


def known_metrics(arms: Iterable[RunRecord]) -> dict[str, None]:
    """The metrics that arms ended with, and those that unfinished ones were scored by."""
    found: dict[str, None] = {}
    for arm in arms:
        found |= dict.fromkeys(arm.metrics)
        if arm.status != "completed":
            found |= {metric: None for metric, _, _, _ in arm.scores if is_score(metric)}
    return found


def _own_measure(arms: Sequence[RunRecord]) -> tuple[str, str]:
    for arm in arms:
        notes = part(arm.result or {}, "extras") if arm.metrics else {}
        if measure := text(notes.get("selection_metric")):
            name = measure if measure in arm.metrics else f"final_{measure}"
            return (name if name in arm.metrics else measure), text(notes.get("selection_mode")) or "min"
    return "", "max"


def latest_score(arm: RunRecord, metric: str) -> ArmScore | None:
    """The last score of an arm; None without any."""
    if arm.status == "completed":
        value = None if arm.unscored else arm.metrics.get(metric)
        return None if value is None else (value, None)
    if arm.problem:
        return None
    taken = [
        (step, value)
        for name, step, line, found in arm.scores
        if name == metric and line.get("split") != "baseline" and (value := number(found.get("value"))) is not None
    ]
    taken = taken or (arm.logged.get(metric, []) if metric and not is_score(metric) else [])
    if taken:
        step, value = max(taken)
        return value, int(step)
    return (arm.metrics[metric], int(arm.metrics.get("steps", 0))) if metric in arm.metrics else None


def _plain_scores(arms: Sequence[RunRecord], scored: Mapping[str, ArmScore | None], metric: str) -> Iterator[RunView]:
    """The mean of each run over its seeds. It has no interval: conclusions draw those, from tasks and seeds.

    Seeds that came to their end count; where none did, those that were scored on the way.
    """
    by_run: dict[str, list[RunRecord]] = {}
    for arm in arms:
        by_run.setdefault(arm.run, []).append(arm)
    for run, seeds in by_run.items():
        failures = sum(bool(arm.problem) for arm in seeds)
        found = [(arm, *score) for arm in seeds if (score := scored[arm.name]) is not None]
        good = [one for one in found if one[2] is None] or found
        if not good:
            yield RunView(run, failures=failures)
            continue
        mean = sum(value for _, value, _ in good) / len(good)
        tasks = whole(good[0][0].metrics.get(f"{metric.rpartition('/')[0]}/tasks"))
        step = min((step for _, _, step in good if step is not None), default=None)
        yield RunView(run, score=mean, n_seeds=len(good), n_tasks=tasks, failures=failures, step=step)


def best_of(runs: Sequence[RunView], mode: str) -> str:
    """The run with the best mean; the earlier one wins a tie."""
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
