"""The record of an experiment -> its `ExperimentSummary`."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..record.reader import ExperimentRecord
from ..record.runs import RunRecord, config_runs
from ..record.values import Object, items, number, part, text
from ..redact import is_suspicious, redact, redact_text
from .effects import Settings, data_source, find_contrasts, settings_of, short_axis, value_text
from .outcome import Outcome, RunScore, best_of, latest_score, outcome_of
from .summary import ExperimentSummary, Failure, RunResult, is_score

_KEPT_FAILURES = 5
_KEPT_NOTES = 20
_LONGEST_TEXT = 600


def summarize(record: ExperimentRecord) -> ExperimentSummary:
    """One experiment in a few fields; `unfinished` is left to whoever asks when to tell running from killed."""
    config, arms, start = record.config or {}, record.runs, record.start
    metadata, runs = part(config, "metadata"), config_runs(without_secrets(config))
    settings = {text(run.get("name")): settings_of(run) for run in runs}
    outcome = outcome_of(record.conclusion, config, arms)
    best, problems = outcome.best or RunScore(""), [arm for arm in arms if arm.problem]
    return ExperimentSummary(
        id=record.experiment_id or record.folder.name,
        name=text(config.get("name")) or start.text("name") or record.folder.name,
        path=str(record.folder),
        status="damaged" if record.config is None else record.ending,
        started=record.began,
        ended=record.ended,
        hypothesis=_short(hypothesis_of(config)),
        description=_short(text(config.get("description"))),
        verdict=outcome.verdict,
        sentence=_short(outcome.sentence),
        next=_short(outcome.next),
        metric=outcome.metric,
        mode=outcome.mode,
        best_run=outcome.best_run,
        best_score=best.score,
        best_low=best.low,
        best_high=best.high,
        best_seeds=best.n_seeds,
        best_tasks=best.n_tasks,
        best_covers=best.covers,
        best_step=best.step,
        results=run_results(record, settings, outcome),
        contrasts=find_contrasts(settings, record.conclusion, outcome, arms) if outcome.metric else [],
        n_runs=len({arm.run for arm in arms}),
        n_arms=len(arms),
        n_seeds=max(Counter(arm.run for arm in arms).values(), default=0),
        n_done=sum(arm.status == "completed" and not arm.unscored for arm in arms),
        failures=[Failure(arm.name, _short(redact_text(arm.problem))) for arm in problems[:_KEPT_FAILURES]],
        n_failures=len(problems),
        spend=record.spend,
        tags=_texts(metadata.get("tags")) or _texts(start.get("tags")),
        parent_id=text(config.get("parent_experiment_id")),
        notes=record.notes[-_KEPT_NOTES:],
        invalidated=record.invalidated,
        flags=record.flags,
        models=_kinds(runs, "model", "name"),
        algorithms=_kinds(runs, "algorithm", "kind"),
        backends=_kinds(runs, "backend", "kind"),
        params=best_params(runs, outcome),
        varied=find_varied_paths(runs),
        config_sha256=start.text("config_sha256") or (_hash_config(config) if config else ""),
    )


def without_secrets(recorded: Object) -> Object:
    """What may be of a version that recorded what it was given, as configs are; most needs only a quick look."""
    return redact(recorded) if is_suspicious(json.dumps(recorded)) else recorded


def run_results(record: ExperimentRecord, settings: Mapping[str, Settings], outcome: Outcome) -> list[RunResult]:
    """Every run that was scored; the best one of each model tells where its weights are."""
    scored = [run for run in outcome.runs if run.score is not None and run.run in settings]  # not those of a parent
    of_model: dict[str, list[RunScore]] = {}
    for run in scored:
        of_model.setdefault(_read_setting(settings.get(run.run, {}), "model.name"), []).append(run)
    best = {best_of([run for run in runs if not run.failures], outcome.mode) for runs in of_model.values()}
    return [
        _run_result(record, run, settings.get(run.run, {}), outcome, with_weights=run.run in best) for run in scored
    ]


def _run_result(
    record: ExperimentRecord, run: RunScore, settings: Settings, outcome: Outcome, *, with_weights: bool
) -> RunResult:
    arms = [arm for arm in record.runs if arm.run == run.run]
    data = data_source(settings)
    return RunResult(
        run=run.run,
        model=_read_setting(settings, "model.name"),
        algorithm=_read_setting(settings, "algorithm.kind"),
        tasks=_tasks_of(record, run, arms, outcome.metric) if is_score(outcome.metric) else f"data {data}",
        score=run.score,
        low=run.low,
        high=run.high,
        covers=run.covers,
        seeds=run.n_seeds,
        failures=run.failures,
        step=run.step,
        params={
            short_axis(path): value_text(value)
            for path, value in settings.items()
            if path.startswith(("algorithm.params.", "backend.params.", "model.init", "model.load"))
        },
        data=data,
        checkpoint=best_weights(arms, outcome) if with_weights else "",
        arms=len(arms),
        usd=sum(arm.spend.get("usd", 0.0) for arm in arms),
        wall_s=sum(arm.spend.get("wall_s", 0.0) for arm in arms),
    )


def _read_setting(settings: Settings, path: str) -> str:
    return value_text(settings[path]) if path in settings else ""


def _tasks_of(record: ExperimentRecord, run: RunScore, arms: Sequence[RunRecord], metric: str) -> str:
    """Which tasks a score is about: two sets of the same name are two questions."""
    sha256, n_tasks = text(record.conclusion.get("report_sha256")), run.n_tasks
    if not sha256:
        lines = (line for arm in arms for name, _, line, _ in arm.scores if name == metric)
        line = next(lines, dict[str, Any]())
        sha256, n_tasks = text(line.get("sha256")), n_tasks or len(items(line.get("tasks"))) or None
    return " ".join([*([f"{n_tasks} tasks"] if n_tasks else []), *([sha256[:6]] if sha256 else [])])


def best_weights(arms: Sequence[RunRecord], outcome: Outcome) -> str:
    """The weights of the best seed of a run: its best checkpoint, its final one, or the last it wrote."""
    sign = 1 if outcome.mode == "min" else -1
    ranked = [(sign * score[0], arm) for arm in arms if (score := latest_score(arm, outcome.metric)) is not None]
    for _, arm in sorted(ranked, key=lambda pair: pair[0]):
        if not os.path.isdir(f"{arm.experiment}/{arm.name}"):  # a record that was copied without its arms
            continue
        artifacts = part(arm.result or {}, "artifacts")
        found = text(artifacts.get("best_checkpoint")) or text(artifacts.get("final_checkpoint"))
        if found := found or (text(arm.checkpoints[-1].get("state")) if arm.checkpoints else ""):
            return found
    return ""


def hypothesis_of(config: Object) -> str:
    """The claim, however it was written."""
    metadata = part(config, "metadata")
    return text(metadata.get("hypothesis")) or text(part(metadata, "hypothesis").get("claim"))


def best_params(runs: Sequence[Object], outcome: Outcome) -> dict[str, Any]:
    """The params of the best run's algorithm, flat; of the first run's where none is best."""
    chosen = next((run for run in runs if run.get("name") == outcome.best_run), runs[0] if runs else {})
    return scalars(part(chosen, "algorithm", "params"))


def scalars(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names and plain values; lists are written out as text."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict):
            found |= scalars(part(inner), f"{name}.")
        elif isinstance(inner, list):
            found[name] = _short(json.dumps(inner, default=str), 80)
        elif inner is not None and not (isinstance(inner, float) and number(inner) is None):
            found[name] = _short(inner, 80) if isinstance(inner, str) else inner
    return found


def find_varied_paths(runs: Sequence[Object], most: int = 8) -> list[str]:
    """The dotted paths in which the runs of an experiment differ."""
    first, *others = runs[:200] or [{}]  # a sweep of thousands shows in its first runs what it varies
    same = {"name", *(key for key, value in first.items() if all(run.get(key) == value for run in others))}
    flat = [scalars({key: value for key, value in run.items() if key not in same}) for run in (first, *others)]
    names = dict.fromkeys(name for one in flat for name in one)
    return [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)][:most]


def _kinds(runs: Sequence[Object], block: str, key: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs if (name := text(part(run, block).get(key)))))


def _texts(value: Any) -> list[str]:
    return [one for one in items(value) if isinstance(one, str)]


def _short(value: str, most: int = _LONGEST_TEXT) -> str:
    return value if len(value) <= most else f"{value[: most - 1]}…"


def _hash_config(config: Object) -> str:
    """As the journal has it since there is one."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
