"""What the experiments beside one say against it: that it is a copy, or that its tasks are not what they were."""

from __future__ import annotations

from collections.abc import Iterator

from ..record.reader import ExperimentRecord
from ..record.values import subfolders, text


def find_copies(record: ExperimentRecord) -> list[str]:
    """Other experiments that have events of this one, which belong to it alone."""
    mine = {event.id for event in record.events if event.id}
    return [
        f"{other.folder.name} has the same events, so that one of the two is a copy"
        for other in _neighbours(record)
        if other.files.journal.is_file() and mine & {event.id for event in other.events}
    ]


def find_changed_tasks(record: ExperimentRecord) -> list[str]:
    """Sets of tasks that had other content when an earlier experiment was scored on the same name and version."""
    mine, began = _task_ids(record), record.began or 0.0
    if not mine:
        return []
    found: dict[str, str] = {}
    for other in _neighbours(record):
        theirs = _task_ids(other) if (other.began or 0.0) < began else {}
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                found[name] = (
                    f"the tasks of '{name}' are {mine[name]} here and were {theirs[name]} in {other.folder.name}: they "
                    "were changed in place. Restore them, or give the changed ones a name of their own"
                )
    return [found[name] for name in sorted(found)]


def _neighbours(record: ExperimentRecord) -> Iterator[ExperimentRecord]:
    here = record.folder.resolve()
    for name in subfolders(here.parent):
        if name != here.name:
            yield ExperimentRecord(here.parent / name)


def _task_ids(record: ExperimentRecord) -> dict[str, str]:
    """Name, version and split of each set that its first arm was scored on -> the id, which ends in its content."""
    ids = [text(one.get("id")) for run in record.runs[:1] for one in run.benchmarks]
    return {one.rpartition("-")[0]: one for one in ids if "-" in one}
