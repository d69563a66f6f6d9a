"""The folder of an experiment -> evidence. What is missing is missing in the evidence; what is damaged is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...config import Metadata
from ...errors import DataError
from ...record.jsonl_file import read_records
from ..record_dir import CONFIG_FILE, RESULT_FILE
from ..results import STOPPED_BY_SEARCH
from .evidence import ArmEvidence, Evidence, RunEvidence, Score, Scoring, SetKey
from .looks import count_looks

SCORES_FILE = "scores.jsonl"
JOURNAL_FILE = "journal.jsonl"
_NOTHING: dict[str, Any] = {}


def read_evidence(path: Path) -> Evidence:
    """The evidence in the folder of an experiment."""
    config = _config(path)
    metadata = _metadata(path, config)
    journal = list(read_records(path / JOURNAL_FILE))
    start = next((event for event in journal if event.get("kind") == "experiment_started"), _NOTHING)
    searched = any(event.get("kind") == "search_decision" for event in journal)
    arms = [_arm(path, *listed, searched=searched) for listed in _listed_arms(path, config, journal)]
    names = dict.fromkeys([*_run_tags(config), *(arm.run for arm in arms)])
    tags = _run_tags(config)
    settings = _run_settings(config)
    runs = [RunEvidence(name, _by_seed(arms, name), tags.get(name, ()), settings.get(name, {})) for name in names]
    tests = {one.sha256 for arm in arms for one in arm.scorings.values() if one.key[0] == "test" and one.sha256}
    return Evidence(
        experiment=str(start.get("experiment_id") or path.resolve().name),
        metadata=metadata,
        runs=[run for run in runs if run.arms],
        registered="hypothesis_sha256" in start,
        registered_sha256=start.get("hypothesis_sha256"),
        invalidated=_invalidated(journal),
        stopped=_stopped(journal),
        searched=searched,
        looks=count_looks(path, tests, started=start.get("time")),
        deviations=_deviations(journal),
    )


def _config(path: Path) -> dict[str, Any]:
    if not (path / CONFIG_FILE).is_file():
        raise DataError(f"{path}: this is not the folder of an experiment: it has no {CONFIG_FILE}. Name another one.")
    return _read_object(path / CONFIG_FILE)


def _metadata(path: Path, config: Mapping[str, Any]) -> Metadata:
    try:
        return Metadata.model_validate(config.get("metadata") or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("metadata", *first["loc"]))
        raise DataError(
            f"{path / CONFIG_FILE}: {place}: {first['msg']}. Restore the file as `evsys run` wrote it."
        ) from error


def _run_tags(config: Mapping[str, Any]) -> dict[str, list[str]]:
    runs: list[Mapping[str, Any]] = config.get("runs") or [config.get("run") or {}]
    return {run["name"]: list(run.get("tags") or ()) for run in runs if "name" in run}


def _run_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The config of each run by dotted path, without what only names it."""

    def flat(value: Any, place: str = "") -> dict[str, Any]:
        if not isinstance(value, dict) or not value:
            return {place: value}
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {
            k: v for key, inner in items.items() for k, v in flat(inner, f"{place}.{key}" if place else key).items()
        }

    runs: list[Mapping[str, Any]] = config.get("runs") or [config.get("run") or {}]
    named = [run for run in runs if "name" in run]
    return {run["name"]: flat({k: v for k, v in run.items() if k not in ("name", "tags", "seed")}) for run in named}


def _listed_arms(
    path: Path, config: Mapping[str, Any], journal: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, int]]:
    """Arm, run and seed of everything that was planned or is there."""
    found: dict[str, tuple[str, str, int]] = {}
    for event in journal:
        for one in event.get("arms") or ():
            found[one["arm"]] = (one["arm"], one["run"], int(one.get("seed") or 0))
    known = _run_tags(config)
    for folder in sorted(path.iterdir()):
        if folder.name in found or folder.name.startswith(".") or not (folder / CONFIG_FILE).is_file():
            continue
        seed = int(_read_object(folder / CONFIG_FILE).get("seed") or 0)
        shorter = folder.name.removesuffix(f"__seed{seed}")
        found[folder.name] = (folder.name, folder.name if folder.name in known else shorter, seed)
    return list(found.values())


def _by_seed(arms: Iterable[ArmEvidence], run: str) -> list[ArmEvidence]:
    """The arms of a run; the same seed twice is one seed."""
    own = sorted((arm for arm in arms if arm.run == run), key=lambda arm: (arm.seed, arm.arm))
    return list({arm.seed: arm for arm in reversed(own)}.values())[::-1]


def _counts(given: Any) -> list[int]:
    """The values of a mapping of names to counts; nothing where a recipe has put something else there."""
    values: list[Any] = list(given.values()) if isinstance(given, dict) else []  # pyright: ignore[reportUnknownArgumentType]
    return [value for value in values if isinstance(value, int)]


def _arm(path: Path, arm: str, run: str, seed: int, *, searched: bool) -> ArmEvidence:
    folder = path / arm
    result = _read_object(folder / RESULT_FILE) if (folder / RESULT_FILE).is_file() else {}
    extras: dict[str, Any] = result.get("extras") or _NOTHING
    spend: dict[str, Any] = extras.get("spend") or _NOTHING
    reported: dict[str, Any] = result.get("metrics") or _NOTHING
    left_out = "the search did not let it start" if searched and not result else None
    # Not what was spent: a killed run repeats steps, and what follows from the record must not depend on that.
    tokens = _counts(extras.get("tokens"))
    metrics = {name: float(value) for name, value in reported.items() if _is_finite(value)}
    return ArmEvidence(
        arm,
        run,
        seed,
        status=result.get("status"),
        error=result.get("error"),
        unscored=extras.get("unscored"),
        stopped=extras.get(STOPPED_BY_SEARCH, left_out),
        metrics=metrics,
        scorings=_scorings(folder / SCORES_FILE),
        tokens=int(sum(tokens)) if tokens else None,
        usd=spend.get("usd"),
    )


def _scorings(path: Path) -> dict[SetKey, Scoring]:
    """The last scoring of each benchmark: the one of the latest step, and of that the latest line."""
    found: dict[SetKey, Scoring] = {}
    for line in read_records(path):
        try:
            scoring = _scoring(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path}: this line is not a scoring ({type(error).__name__}: {error}). "
                "Remove the file and score the run again with `evsys run --resume`."
            ) from error
        before = found.get(scoring.key)
        if before is None or scoring.step >= before.step:
            found[scoring.key] = scoring
    return found


def _scoring(line: Mapping[str, Any]) -> Scoring:
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


def _invalidated(journal: Iterable[Mapping[str, Any]]) -> str | None:
    reason = None
    for event in journal:
        if event.get("kind") == "invalidated":
            reason = str(event.get("reason") or "no reason was given")
        elif event.get("kind") == "reinstated":
            reason = None
    return reason


def _stopped(journal: Iterable[Mapping[str, Any]]) -> str | None:
    """Why the last attempt was stopped by its budget; how an attempt ends is written after its conclusion."""
    reason = None
    for event in journal:
        if event.get("kind") == "budget_stop":
            reason = str(event.get("reason") or event.get("limit") or "the budget was used up")
        elif event.get("kind") in ("experiment_started", "experiment_resumed"):
            reason = None
    return reason


def _deviations(journal: Iterable[Mapping[str, Any]]) -> list[str]:
    """What did not go as planned before the conclusion, which later events must not change."""
    resumed = 0
    for event in journal:
        if event.get("kind") == "concluded":
            break
        resumed += event.get("kind") == "experiment_resumed"
    return [f"It was resumed {'once' if resumed == 1 else f'{resumed} times'}."] if resumed else []


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: this file is damaged ({error}). Move it away, or start a new attempt.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: this file should hold one JSON object. Move it away, or start a new attempt.")
    return found  # pyright: ignore[reportUnknownVariableType]
