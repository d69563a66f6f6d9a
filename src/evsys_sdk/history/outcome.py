"""What an experiment found: its conclusion if one was written, else the plain means of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record.runs import RunRecord
from ..record.values import Object, items, number, part, text

_SPLITS = ("val", "eval", "test", "train_fit")
"""How names of scores begin; the earlier ones decide before the later ones."""
_COUNTS = ("/stderr", "/tasks", "/failed_samples", "/unscored_tasks")


@dataclass(frozen=True, slots=True)
class RunScore:
    """What one run scored, over its seeds."""

    run: str
    score: float | None = None
    low: float | None = None
    high: float | None = None
    n_seeds: int = 0
    n_tasks: int | None = None
    failures: int = 0
    role: str = ""
    """`baseline` for the run that the others are compared with."""
    covers: str = ""
    """What its interval is about: `tasks` alone where no run has a second seed, else `tasks and seeds`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of an experiment."""

    verdict: str = ""
    sentence: str = ""
    """Why that is the verdict."""
    metric: str = ""
    mode: str = "max"
    best_run: str = ""
    best: RunScore | None = None
    next: str = ""
    """What the conclusion suggests to do next."""
    runs: list[RunScore] = field(default_factory=list[RunScore])


def outcome_of(conclusion: Object, config: Object, arms: Sequence[RunRecord]) -> Outcome:
    """The conclusion, completed from the arms where it says nothing."""
    metric, mode = success_metric(config, arms)
    metric, mode = text(conclusion.get("metric")) or metric, text(conclusion.get("mode")) or mode
    runs = _concluded_runs(conclusion) or plain_scores(arms, metric)
    usable = [run for run in runs if not run.failures]
    best_run = text(conclusion.get("best_arm")) if conclusion else best_of(usable, mode)
    best = next((run for run in runs if run.run == best_run), None)
    score = number(conclusion.get("best_score"))
    if best_run and score is not None and (best is None or best.score is None):
        best = RunScore(best_run, score)
    return Outcome(
        verdict=text(conclusion.get("verdict")),
        sentence=text(conclusion.get("summary")),
        metric=metric,
        mode="min" if mode == "min" else "max",
        best_run=best_run,
        best=best,
        next=" ".join(one for one in items(conclusion.get("next")) if isinstance(one, str)),
        runs=runs,
    )


def success_metric(config: Object, arms: Iterable[RunRecord]) -> tuple[str, str]:
    """Full name and direction of the metric that decides, as far as the record tells."""
    wanted = part(config, "metadata").get("success_metric")
    name = text(wanted) or text(part({"it": wanted}, "it").get("name"))
    mode = text(part({"it": wanted}, "it").get("mode")) or "max"
    known = {key: None for arm in arms for key in arm.metrics}
    if name in known:
        return name, mode
    scores = sorted((key for key in known if is_score(key)), key=_rank)
    if name:
        return next((key for key in scores if key.endswith(f"/{name}")), name), mode
    return (scores[0] if scores else ""), mode


def is_score(metric: str) -> bool:
    """Whether a metric is the score of a whole set of tasks or rows."""
    return metric.startswith(tuple(f"{split}/" for split in _SPLITS)) and not (
        metric.endswith(_COUNTS) or "=" in metric
    )


def plain_scores(arms: Sequence[RunRecord], metric: str) -> list[RunScore]:
    """The mean of each run over its seeds. It has no interval: conclusions draw those, from tasks and seeds."""
    by_run: dict[str, list[RunRecord]] = {}
    for arm in arms:
        by_run.setdefault(arm.run, []).append(arm)
    return [_plain_score(run, found, metric) for run, found in by_run.items()]


def best_of(runs: Sequence[RunScore], mode: str) -> str:
    """The run with the best mean; the earlier one wins a tie."""
    sign = 1 if mode == "min" else -1
    scored = [run for run in runs if run.score is not None]
    return min(scored, key=lambda run: sign * (run.score or 0.0)).run if scored else ""


def _plain_score(run: str, arms: Sequence[RunRecord], metric: str) -> RunScore:
    good = [arm for arm in arms if arm.status == "completed" and not arm.unscored and metric in arm.metrics]
    bad = sum(bool(arm.problem) for arm in arms)
    if not good:
        return RunScore(run, failures=bad)
    mean = sum(arm.metrics[metric] for arm in good) / len(good)
    tasks = good[0].metrics.get(f"{metric.rpartition('/')[0]}/tasks")
    return RunScore(run, mean, n_seeds=len(good), n_tasks=None if tasks is None else int(tasks), failures=bad)


def _concluded_runs(conclusion: Object) -> list[RunScore]:
    rows = [part({"it": raw}, "it") for raw in items(conclusion.get("runs"))]
    repeated = any((number(row.get("n_seeds")) or 0) > 1 for row in rows)  # runs lend each other their seed noise
    return [
        RunScore(
            text(row.get("name")),
            number(row.get("mean")),
            number(row.get("low")),
            number(row.get("high")),
            int(number(row.get("n_seeds")) or 0),
            _whole(row.get("n_tasks")),
            int(number(row.get("failures")) or 0),
            "baseline" if row.get("is_baseline") is True else "",
            "" if number(row.get("low")) is None else "tasks and seeds" if repeated else "tasks",
        )
        for row in rows
        if text(row.get("name"))
    ]


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _rank(metric: str) -> tuple[int, str]:
    return next(index for index, split in enumerate(_SPLITS) if metric.startswith(f"{split}/")), metric
