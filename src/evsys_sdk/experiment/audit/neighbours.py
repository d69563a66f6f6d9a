"""What the experiments beside one say against it: that it is a copy, or that its tasks are not what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...paths import project_root
from ...record.layout import DEFAULT_ROOT
from ...record.project_files.claims import read_claims, share_questions
from ...record.project_files.known_folders import read_output_roots
from ...record.reader import ExperimentRecord, experiment_id
from ...record.values import items, number, subfolders, text

_PART = 0.9
"""From here on a set of questions counts as a part of another."""


def find_copies(record: ExperimentRecord) -> list[str]:
    """Other experiments that have events of this one, which belong to it alone."""
    mine = {event.id for event in record.events if event.id}
    found = [other for other in _neighbours(record) if other.files.journal.is_file()]
    found = [other.folder.name for other in found if mine & {event.id for event in other.events}]
    found += [str(folder) for folder in _find_namesakes(record)]
    return [f"{name} has the same events, so that one of the two is a copy" for name in found]


def _find_namesakes(record: ExperimentRecord) -> Iterator[Path]:
    """Folders with the same id in other places that the project writes to."""
    here, mine = record.folder.resolve(), record.experiment_id
    roots = {root.resolve() for root in (project_root() / DEFAULT_ROOT, *read_output_roots())} - {here.parent}
    for folder in (root / name for root in sorted(roots) for name in subfolders(root)):
        if mine is not None and folder.resolve() != here and experiment_id(folder) == mine:
            yield folder


def find_changed_tasks(record: ExperimentRecord) -> list[str]:
    """Sets of tasks that had other content when an earlier experiment was scored on the same name and version."""
    mine = _task_ids(record)
    if not mine:
        return []
    found: dict[str, str] = {}
    for other in _find_earlier(record):
        theirs = _task_ids(other)
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                found[name] = (
                    f"the tasks of '{name}' are {mine[name]} here and were {theirs[name]} in {other.folder.name}: they "
                    "were changed in place. Restore them, or give the changed ones a name of their own"
                )
    return [found[name] for name in sorted(found)]


def find_left_out(record: ExperimentRecord) -> list[str]:
    """Earlier scorings of more tasks than these: those that spoke against a claim may have been left out of it."""
    mine = _sketch(record)
    if not mine or not record.start.text("family"):
        return []
    found: list[str] = []
    for other in _find_earlier(record):
        theirs = _sketch(other)
        fewer = _n_questions(other) - _n_questions(record)
        if fewer <= 0 or share_questions(mine, theirs) < _PART or not any(run.score_lines for run in other.runs):
            continue
        found.append(
            f"its tasks are a part of those that {other.folder.name} had been scored on before, and {fewer} of these "
            "are left out. Score all of them, or claim nothing with a part"
        )
    return found


def find_lost_clusters(record: ExperimentRecord) -> list[str]:
    """Earlier scorings of these tasks that knew which of them belong together, where this one does not."""
    mine = _sketch(record)
    if not mine or _count_clusters(record):
        return []
    for other in _find_earlier(record):
        is_the_same = share_questions(mine, _sketch(other)) >= _PART
        if is_the_same and (known := _count_clusters(other)):
            return [
                f"in {other.folder.name} these tasks were in {known} clusters, and here each of them counts alone. "
                "Say again which belong together"
            ]
    return []


def _count_clusters(record: ExperimentRecord) -> int:
    """Into how many clusters the tasks of its first arm were put; 0 where they stand alone."""
    lines = [line for run in record.runs[:1] for line in run.score_lines]
    return len({text(one) for line in lines for one in items(line.get("clusters"))} - {""})


def _n_questions(record: ExperimentRecord) -> int:
    return int(number(record.start.get("n_questions")) or 0)


def _sketch(record: ExperimentRecord) -> list[str]:
    return [text(one) for one in items(record.start.get("sketch"))]


def _neighbours(record: ExperimentRecord) -> Iterator[ExperimentRecord]:
    here = record.folder.resolve()
    for name in subfolders(here.parent):
        if name != here.name:
            yield ExperimentRecord(here.parent / name)


def _find_earlier(record: ExperimentRecord) -> Iterator[ExperimentRecord]:
    """The experiments beside one that came before it, by the clock or by the project's list of claims."""
    listed = {text(one.get("experiment")): at for at, one in enumerate(read_claims())}
    began, at = record.began or 0.0, listed.get(record.experiment_id or "", -1)
    for other in _neighbours(record):
        if (other.began or 0.0) < began or listed.get(other.experiment_id or "", len(listed)) < at:
            yield other


def _task_ids(record: ExperimentRecord) -> dict[str, str]:
    """Name, version and split of each set that its first arm was scored on -> the id, which ends in its content."""
    ids = [text(one.get("id")) for run in record.runs[:1] for one in run.benchmarks]
    return {one.rpartition("-")[0]: one for one in ids if "-" in one}
