"""What earlier experiments of a project tell about this one: how noisy seeds are, and the run that it goes on from.

    lend_noise(config, folder)      before the first step; the journal keeps it, so that the conclusion stays the same
    find_parent(record, hashes)     the best run of the experiment that `parent_experiment_id` names

Noise is lent by runs with the same model and algorithm on the same tasks. Nothing is lent or gone on from that did not
end, was invalidated, or has flags of an audit; nor by an arm that is trained here as well, whose luck is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...config import ExperimentConfig
from ...errors import EvsysError
from ...record.events import Event
from ...record.folders import find_attempts
from ...record.reader import ExperimentRecord
from ...record.runs import config_runs
from ...record.values import Object, items, mtime, number, part, subfolders, text
from ..arms.arm import expand_arms
from ..benchmark_plan import load_entry
from ..statistics.two_level import RunScores, SeedNoise, seed_noise
from .evidence import BASELINE, ArmEvidence, LentNoise, RunEvidence
from .recorded_runs import read_runs

_MOST_ASKED = 30
"""Experiments that are asked for noise, the latest first."""

type _Measure = tuple[str, str, int]
"""Hash of the tasks, metric, and samples of an arm."""


def lend_noise(config: ExperimentConfig, folder: Path) -> list[Object]:
    """What the seeds of earlier runs did on the tasks of an experiment that is about to start, for its journal."""
    if config.metadata.hypothesis is None or not config.metadata.benchmark:
        return []
    try:
        hashes = {load_entry(entry).sha256 for entry in config.metadata.benchmark}
    except EvsysError:  # it is said where the benchmark is needed
        return []
    known = {arm.id for arm in expand_arms(config)}
    recipes = {(run.model.name, run.algorithm.kind) for run in config.all_runs()}
    tables: defaultdict[_Measure, list[RunScores]] = defaultdict(list)
    for record in _earlier(folder):
        if not recipes & {_recipe(run) for run in config_runs(record.config or {})}:
            continue
        for measure, scores in _tables(record, hashes, recipes, known):
            tables[measure].append(scores)
    return [one for measure, runs in sorted(tables.items()) if (one := _as_object(measure, runs)) is not None]


def read_lent(start: Event) -> list[LentNoise]:
    """What was lent when an experiment started; what is damaged is not."""
    found: list[LentNoise] = []
    for one in (part({"it": one}, "it") for one in items(start.get("lent"))):
        between, explained, df, runs, samples = (
            number(one.get(name)) for name in ("between", "explained", "df", "runs", "samples")
        )
        if between is None or explained is None or not df or not runs or samples is None:
            continue
        noise = SeedNoise(between, explained, int(df))
        found.append(LentNoise(text(one.get("sha256")), text(one.get("metric")), int(samples), noise, int(runs)))
    return found


def find_parent(record: ExperimentRecord, hashes: Iterable[str]) -> RunEvidence | None:
    """The best run of the experiment that this one was derived from, if it was scored on the same tasks."""
    named = text((record.config or {}).get("parent_experiment_id"))
    parent = _find_record(record.folder.resolve(), named) if named else None
    best = "" if parent is None else text(parent.conclusion.get("best_arm"))
    if parent is None or not best:
        return None
    wanted = set(hashes)
    run = next((run for run in _runs_of(parent) if run.name == best and not run.problems), None)
    if run is None or not all(_was_asked(arm, wanted) for arm in run.arms):
        return None
    name = f"{best} of {parent.experiment_id}"
    arms = [replace(arm, arm=f"{parent.experiment_id}/{arm.arm}", run=name) for arm in run.arms]
    return replace(run, name=name, arms=arms)


def _was_asked(arm: ArmEvidence, hashes: set[str]) -> bool:
    """Whether it was scored on some of these tasks, and on no other ones."""
    own = {one.sha256 for one in arm.scorings.values() if one.sha256}
    return bool(own) and own <= hashes


def _find_record(folder: Path, name: str) -> ExperimentRecord | None:
    """The experiment beside this one with that id, or of that name; of several attempts, the latest."""
    by_id = ExperimentRecord(folder.parent / name.rpartition("-")[0])  # an id is the folder's name and a few digits
    attempts = find_attempts(folder.parent / name)
    latest = [attempts[at] for at in sorted(attempts, reverse=True) if attempts[at].resolve() != folder]
    known = [by_id] if by_id.experiment_id == name else [ExperimentRecord(path) for path in latest]
    return next((one for one in known if _counts(one)), None)


def _counts(record: ExperimentRecord) -> bool:
    return record.is_finished and not record.invalidated and not record.flags


def _earlier(folder: Path) -> Iterator[ExperimentRecord]:
    """Other experiments in the same place that can be counted on, the latest first."""
    folder = folder.resolve()
    places = [folder.parent / name for name in subfolders(folder.parent) if name != folder.name]
    # By name where times are equal: what is lent must not hang on the order of the file system.
    latest_first = sorted(places, key=lambda path: (-(mtime(path) or 0.0), path.name))
    return islice(filter(_counts, map(ExperimentRecord, latest_first)), _MOST_ASKED)


def _runs_of(record: ExperimentRecord) -> list[RunEvidence]:
    try:
        return read_runs(record)
    except EvsysError:  # what is damaged is passed over
        return []


def _tables(
    record: ExperimentRecord, hashes: set[str], recipes: set[tuple[str, str]], known: set[str]
) -> Iterator[tuple[_Measure, RunScores]]:
    """The scores of every run that may lend its noise, by what was measured; `known` grows by the arms that did."""
    ids = {text(one.get("arm")): text(one.get("arm_id")) for one in _read_announced(record.start)}
    for run in _runs_of(record):
        recipe = (str(run.settings.get("model.name")), str(run.settings.get("algorithm.kind")))
        new = [arm for arm in run.arms if arm.ended and ids.get(arm.arm, "") not in known]
        if recipe not in recipes or run.problems or len(new) < 2:
            continue
        known |= {ids[arm.arm] for arm in new if ids.get(arm.arm)}
        for measure, rows in _rows(new, hashes).items():
            tasks = sorted(task for task in rows[0] if all(task in row for row in rows))
            if len(rows) > 1 and len(tasks) > 1:
                yield measure, RunScores(np.array([[row[task] for task in tasks] for row in rows]))


def _recipe(run: Object) -> tuple[str, str]:
    return text(part(run, "model").get("name")), text(part(run, "algorithm").get("kind"))


def _read_announced(start: Event) -> list[Object]:
    return [part({"it": one}, "it") for one in items(start.get("arms"))]


def _rows(arms: Iterable[ArmEvidence], hashes: set[str]) -> dict[_Measure, list[Mapping[str, float]]]:
    found: defaultdict[_Measure, list[Mapping[str, float]]] = defaultdict(list)
    for arm in arms:
        for one in arm.scorings.values():
            if one.key[0] == BASELINE or one.sha256 not in hashes or one.failed_samples or one.clusters:
                continue
            for metric, score in one.scores.items():
                if score.per_task is not None:
                    found[one.sha256, metric, score.n_samples].append(score.per_task)
    return found


def _as_object(measure: _Measure, runs: list[RunScores]) -> dict[str, Any] | None:
    noise = seed_noise(runs)
    if noise is None or max(noise.between, noise.explained) <= 0:
        return None  # nothing moved at all, which tells nothing about what could
    sha256, metric, samples = measure
    about = {"sha256": sha256, "metric": metric, "samples": samples, "runs": len(runs)}
    return {**about, "between": noise.between, "explained": noise.explained, "df": noise.df}
