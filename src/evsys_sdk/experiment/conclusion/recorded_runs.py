"""The runs of a record as evidence: every arm with its result, and the last scoring of each benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import DataError
from ...record.folders import load_result
from ...record.reader import ExperimentRecord
from ...record.run_files.scores import load_score_lines
from ...record.runs import RunRecord, config_runs
from ..arms.results import STOPPED_BY_SEARCH
from .evidence import ArmEvidence, RunEvidence, Score, Scoring, SetKey

_NOTHING: dict[str, Any] = {}


def read_runs(record: ExperimentRecord) -> list[RunEvidence]:
    """Every run that has an arm, in the order of the config; a damaged file is an error."""
    config = record.config or _NOTHING
    searched = bool(record.search_decisions)
    arms = [_arm(run, searched=searched) for run in record.runs_on_disk]
    tags, settings = _run_tags(config), _run_settings(config)
    names = dict.fromkeys([*tags, *(arm.run for arm in arms)])
    runs = [RunEvidence(name, _by_seed(arms, name), tags.get(name, ()), settings.get(name, {})) for name in names]
    return [run for run in runs if run.arms]


def _run_tags(config: Mapping[str, Any]) -> dict[str, list[str]]:
    return {run["name"]: list(run.get("tags") or ()) for run in config_runs(dict(config)) if "name" in run}


def _run_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The config of each run by dotted path, without what only names it."""

    def flat(value: Any, place: str = "") -> dict[str, Any]:
        if not isinstance(value, dict) or not value:
            return {place: value}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {
            k: v for key, inner in items.items() for k, v in flat(inner, f"{place}.{key}" if place else key).items()
        }

    named = [run for run in config_runs(dict(config)) if "name" in run]
    return {run["name"]: flat({k: v for k, v in run.items() if k not in ("name", "tags", "seed")}) for run in named}


def _by_seed(arms: Iterable[ArmEvidence], run: str) -> list[ArmEvidence]:
    """The arms of a run; the same seed twice is one seed."""
    own = sorted((arm for arm in arms if arm.run == run), key=lambda arm: (arm.seed, arm.arm))
    return list({arm.seed: arm for arm in reversed(own)}.values())[::-1]


def _counts(given: Any) -> list[int]:
    """The values of a mapping of names to counts; nothing where a recipe has put something else there."""
    values: list[Any] = list(given.values()) if isinstance(given, dict) else []  # pyright: ignore[reportUnknownArgumentType]
    return [value for value in values if isinstance(value, int)]


def _arm(run: RunRecord, *, searched: bool) -> ArmEvidence:
    result = run.result or load_result(run.folder) or _NOTHING  # which says what is wrong with a damaged one
    extras: dict[str, Any] = result.get("extras") or _NOTHING
    spend: dict[str, Any] = extras.get("spend") or _NOTHING
    reported: dict[str, Any] = result.get("metrics") or _NOTHING
    left_out = "the search did not let it start" if searched and not result else None
    # Not what was spent: a killed run repeats steps, and what follows from the record must not depend on that.
    tokens = _counts(extras.get("tokens"))
    metrics = {name: float(value) for name, value in reported.items() if _is_finite(value)}
    return ArmEvidence(
        run.name,
        run.run,
        run.seed or 0,
        status=result.get("status"),
        error=result.get("error"),
        unscored=extras.get("unscored"),
        stopped=extras.get(STOPPED_BY_SEARCH, left_out),
        metrics=metrics,
        scorings=_scorings(run),
        tokens=int(sum(tokens)) if tokens else None,
        usd=spend.get("usd"),
    )


def _scorings(run: RunRecord) -> dict[SetKey, Scoring]:
    """The last scoring of each benchmark: the one of the latest step, and of that the latest line."""
    found: dict[SetKey, Scoring] = {}
    for line in load_score_lines(run.folder):
        try:
            scoring = _read_scoring(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{run.files.scores}: this line is not a scoring ({type(error).__name__}: {error}). "
                "Remove the file and score the run again with `evsys run --resume`."
            ) from error
        before = found.get(scoring.key)
        if before is None or scoring.step >= before.step:
            found[scoring.key] = scoring
    return found


def _read_scoring(line: Mapping[str, Any]) -> Scoring:
    tasks = [str(task) for task in line.get("tasks") or ()]
    scores = {name: score for name, each in line["metrics"].items() if (score := _score(each, tasks)) is not None}
    unscored: dict[str, Any] = line.get("unscored") or _NOTHING
    key = (str(line["split"]), str(line.get("name") or ""))
    return Scoring(
        key,
        int(line["step"]),
        str(line.get("sha256") or ""),
        scores,
        int(line.get("failed_samples") or 0),
        {str(task): str(why) for task, why in unscored.items()},
        clusters=_of_tasks(tasks, line.get("clusters")),
        samples=_of_tasks(tasks, line.get("samples")),
        labels={str(key): _of_tasks(tasks, values) for key, values in (line.get("labels") or _NOTHING).items()},
    )


def _of_tasks(tasks: Sequence[str], values: Sequence[Any] | None) -> dict[str, Any]:
    """What a line says about each task; nothing about a task whose value is null."""
    if values is None or len(values) != len(tasks):
        return {}
    return {task: value for task, value in zip(tasks, values, strict=True) if value is not None}


def _score(given: Mapping[str, Any], tasks: Sequence[str]) -> Score | None:
    if not _is_finite(given.get("value")):
        return None
    values = given.get("per_task")
    per_task = None
    if values is not None and len(values) == len(tasks):
        pairs = zip(tasks, values, strict=True)
        per_task = {task: float(value) for task, value in pairs if _is_finite(value)}
    return Score(float(given["value"]), per_task, int(given.get("n_samples") or 0), int(given.get("n_missing") or 0))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
