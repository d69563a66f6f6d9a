"""The run that an experiment continues from: the best one of the experiment that `parent_experiment_id` names.

An experiment that did not end, was invalidated or has flags of an audit is no parent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...errors import EvsysError
from ...record.folders import find_attempts
from ...record.reader import ExperimentRecord
from ...record.values import text
from .evidence import ArmEvidence, RunEvidence
from .recorded_runs import read_runs


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


def _runs_of(record: ExperimentRecord) -> list[RunEvidence]:
    try:
        return read_runs(record)
    except EvsysError:  # what is damaged is passed over
        return []
