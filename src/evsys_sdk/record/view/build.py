"""Build the `ExperimentView` from the record of an experiment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ...redact import redact_text
from ..flat_config import (
    Settings,
    data_source,
    find_varied,
    read_setting,
    scalars,
    short_axis,
    shorten,
    value_text,
)
from ..reader import ExperimentRecord
from ..runs import PENDING, STARTED, RunRecord, add_spend, config_runs
from ..values import UNFINISHED, Object, find_row, items, number, part, text
from .model import ArmView, Difference, ExperimentView, Failure, RunView
from .outcome import ArmScore, Outcome, best_of, outcome_of
from .question import Question, describe_tasks, is_score, joined, split_of

_LONGEST_TEXT = 600


@dataclass(frozen=True, slots=True)
class Liveness:
    """Whether an experiment has a process."""

    running: bool = False
    """Whether a process runs it now."""


def view(record: ExperimentRecord, liveness: Liveness | None = None) -> ExperimentView:
    """The view of an experiment; without `liveness`, its lock is checked."""
    if liveness is None:
        liveness = Liveness(record.ending == UNFINISHED and record.is_running)
    config, arms, start = record.config or {}, record.runs, record.start
    metadata, runs = part(config, "metadata"), config_runs(record.clean_config)
    outcome = outcome_of(record.conclusion, config, arms)
    status = status_of(record, liveness)
    conclusion, best, problems = record.conclusion, outcome.best, [arm for arm in arms if arm.problem]
    baseline = _baseline(conclusion, metadata, runs)
    varied, values = find_varied(runs)
    differing = {name: row for (name, _), row in zip(_named(runs), values, strict=True)}
    models, backends = _kinds(runs, "model", "name"), _kinds(runs, "backend", "kind")
    arm_views = [_arm_view(record, arm, status, outcome.arms[arm.name]) for arm in arms]
    _complete_runs(record, arm_views, outcome, baseline, differing)
    return ExperimentView(
        id=record.experiment_id or record.folder.name,
        name=text(config.get("name")) or start.text("name") or record.folder.name,
        path=str(record.folder),
        status=status,
        started=record.began,
        ended=record.ended,
        hypothesis=_short(hypothesis_of(config)),
        description=_short(text(config.get("description"))),
        question=Question.of(start.part("question")) or _derive_question(outcome, models, backends),
        verdict=text(conclusion.get("verdict")),
        sentence=_short(text(conclusion.get("summary"))),
        next=_short(" ".join(_texts(conclusion.get("next")))),
        error_rate=number(conclusion.get("error_rate")),
        same_evidence=start.text("same_evidence"),
        metric=outcome.metric,
        mode=outcome.mode,
        baseline=baseline,
        best_run=outcome.best_run,
        best_score=best.score,
        best_low=best.low,
        best_high=best.high,
        best_seeds=best.n_seeds,
        best_tasks=best.n_tasks,
        best_covers=best.covers,
        best_step=best.step,
        runs=outcome.runs,
        arms=arm_views,
        n_runs=sum(run.n_arms > 0 for run in outcome.runs),
        n_arms=len(arms),
        n_seeds=max((run.n_arms for run in outcome.runs), default=0),
        n_done=sum(arm.status == "completed" and not arm.unscored for arm in arms),
        failures=[Failure(arm.name, redact_text(arm.problem)) for arm in problems],
        n_failures=len(problems),
        spend=record.spend,
        tags=_tags(record, metadata),
        parent_id=text(config.get("parent_experiment_id")),
        notes=record.notes,
        invalidated=record.invalidated,
        flags=record.flags,
        remarks=record.near_matches,
        models=models,
        algorithms=_kinds(runs, "algorithm", "kind"),
        backends=backends,
        params=_best_params(runs, outcome),
        varied=varied,
        config_sha256=start.text("config_sha256") or (_hash_config(config) if config else ""),
    )


def hypothesis_of(config: Object) -> str:
    """The claim of a config, from either form of `metadata.hypothesis`."""
    metadata = part(config, "metadata")
    return text(metadata.get("hypothesis")) or text(part(metadata, "hypothesis").get("claim"))


# State: one rule for the experiment and one for its arms


def status_of(record: ExperimentRecord, liveness: Liveness) -> str:
    """One of `STATUSES`."""
    if record.config is None:
        return "damaged"
    if record.ending != UNFINISHED:
        return record.ending
    if not liveness.running:
        return "killed"
    return "waiting" if record.awaits_approval else "running"


def arm_status(recorded: str, experiment: str) -> str:
    """The status of an arm, from its recorded status and that of its experiment."""
    if recorded == PENDING:
        return "waiting"
    if recorded != STARTED:
        return recorded
    if experiment in ("running", "waiting"):
        return "running"
    return "interrupted" if experiment in ("interrupted", "budget") else "killed"


def _arm_view(record: ExperimentRecord, arm: RunRecord, experiment: str, scored: ArmScore | None) -> ArmView:
    score, score_step = scored or (None, None)
    status, problem = arm_status(arm.status, experiment), arm.problem
    unfinished = arm.status == STARTED
    step = arm.metrics.get("steps")
    if step is None and unfinished:
        step = number(arm.last_metrics.get("step"))
    return ArmView(
        arm=arm.name,
        run=arm.run,
        seed=arm.seed,
        status=status,
        problem=redact_text(problem) if problem else "",
        metrics=arm.metrics,
        score=score,
        score_step=score_step,
        step=None if step is None else int(step),
        total_steps=arm.total_steps if unfinished else None,
        spend=record.spend_of(arm),
        findings=list(arm.findings),
    )


# Question and baseline


def _derive_question(outcome: Outcome, models: Sequence[str], backends: Sequence[str]) -> Question:
    """The question of a record without one in its journal, from its scores."""
    if not outcome.metric:
        return Question()
    scored = [run for run in outcome.runs if run.n_arms]
    tasks = next((run.tasks for run in scored if run.is_best), "") or next((run.tasks for run in scored), "")
    return Question(outcome.metric, split_of(outcome.metric), tasks, outcome.mode, joined(models), joined(backends))


def _baseline(conclusion: Object, metadata: Object, runs: Sequence[Object]) -> str:
    """The baseline run: from the conclusion, else from the hypothesis or a tag."""
    if concluded := text(conclusion.get("baseline")):
        return concluded
    named = text(part(metadata, "hypothesis").get("baseline"))
    tagged = [name for name, run in _named(runs) if name == "baseline" or "baseline" in items(run.get("tags"))]
    return named or next(iter(tagged), "")


# Runs


def _complete_runs(
    record: ExperimentRecord,
    arm_views: Sequence[ArmView],
    outcome: Outcome,
    baseline: str,
    varied: Mapping[str, dict[str, Any]],
) -> None:
    """Add settings, tasks, seeds and spend to the runs, and the checkpoint of each model's best run."""
    settings = record.settings
    differences = {text(row.get("run")): row for row in map(part, items(record.conclusion.get("comparisons")))}
    of_model: dict[str, list[RunView]] = {}
    by_run: dict[str, list[tuple[RunRecord, ArmView]]] = {}
    for arm in zip(record.runs, arm_views, strict=True):
        by_run.setdefault(arm[0].run, []).append(arm)
    for run in outcome.runs:
        run_settings, arms = settings.get(run.run, {}), by_run.get(run.run, [])
        data = data_source(run_settings)
        fields = {
            "is_baseline": run.is_baseline or run.run == baseline,
            "is_best": run.run == outcome.best_run,
            "model": read_setting(run_settings, "model.name"),
            "backend": read_setting(run_settings, "backend.kind"),
            "algorithm": read_setting(run_settings, "algorithm.kind"),
            "data": data,
            "params": _params(run_settings),
            "varied": varied.get(run.run, {}),
            "tasks": _tasks_text(record, run, arms, outcome.metric) if is_score(outcome.metric) else f"data {data}",
            "seed_scores": [arm.score for _, arm in arms if arm.score is not None],
            "difference": _difference(differences.get(run.run)),
            "n_arms": len(arms),
            "spend": add_spend(*(arm.spend for _, arm in arms)),
        }
        for name, value in fields.items():  # set here, because the runs are not shared yet
            setattr(run, name, value)
        if run.score is not None and run.run in settings:  # a run of the parent has no settings here
            of_model.setdefault(run.model, []).append(run)
    best = {best_of([run for run in runs if not run.failures], outcome.mode) for runs in of_model.values()}
    for run in outcome.runs:
        if run.run in best:
            setattr(run, "checkpoint", _best_weights(by_run.get(run.run, ()), outcome))  # noqa: B010


def _params(settings: Settings) -> dict[str, str]:
    prefixes = ("algorithm.params.", "backend.params.", "model.init", "model.load")
    return {short_axis(path): value_text(value) for path, value in settings.items() if path.startswith(prefixes)}


def _difference(row: Object | None) -> Difference | None:
    value = None if row is None else number(row.get("difference"))
    if row is None or value is None:
        return None
    return Difference(value, number(row.get("low")), number(row.get("high")), number(row.get("p")))


def _tasks_text(record: ExperimentRecord, run: RunView, arms: Sequence[tuple[RunRecord, ArmView]], metric: str) -> str:
    """The tasks of a score as text: their number, and the beginning of their hash."""
    sha256, n_tasks = text(record.conclusion.get("report_sha256")), run.n_tasks
    if not sha256:
        lines = (line for arm, _ in arms for name, _, line, _ in arm.scores if name == metric)
        line = next(lines, dict[str, Any]())
        sha256, n_tasks = text(line.get("sha256")), n_tasks or len(items(line.get("tasks"))) or None
    return describe_tasks(n_tasks, sha256)


def _best_weights(arms: Sequence[tuple[RunRecord, ArmView]], outcome: Outcome) -> str:
    """The weights of the best seed of a run: its best, final or last checkpoint."""
    ranked = [(arm_view.score, arm) for arm, arm_view in arms if arm_view.score is not None]
    for _, arm in sorted(ranked, key=itemgetter(0), reverse=outcome.mode == "max"):
        if not os.path.isdir(f"{arm.experiment}/{arm.name}"):  # the record was copied without its arms
            continue
        artifacts = part(arm.result or {}, "artifacts")
        checkpoint = text(artifacts.get("best_checkpoint")) or text(artifacts.get("final_checkpoint"))
        if checkpoint := checkpoint or (text(arm.checkpoints[-1].get("state")) if arm.checkpoints else ""):
            return checkpoint
    return ""


def _best_params(runs: Sequence[Object], outcome: Outcome) -> dict[str, Any]:
    """The params of the best run's algorithm, flat; by default of the first run's."""
    chosen = find_row(runs, "name", outcome.best_run) or (runs[0] if runs else {})
    return scalars(part(chosen, "algorithm", "params"))


def _named(runs: Sequence[Object]) -> list[tuple[str, Object]]:
    return [(text(run.get("name")), run) for run in runs]


def _kinds(runs: Sequence[Object], block: str, key: str) -> list[str]:
    return list(dict.fromkeys([name for run in runs if (name := text(part(run, block).get(key)))]))


def _tags(record: ExperimentRecord, metadata: Object) -> list[str]:
    tags = record.tags
    return (_texts(metadata.get("tags")) or _texts(record.start.get("tags"))) if tags is None else tags


def _texts(value: Any) -> list[str]:
    return [element for element in items(value) if isinstance(element, str)]


def _short(value: str) -> str:
    return shorten(value, _LONGEST_TEXT)


def _hash_config(config: Object) -> str:
    """The hash of a config, as the journal stores it."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
