"""What the experiments beside one say against it: that it is a copy, or that its tasks are not what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...data.workspace.reference import slug
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
    """Task sets in which a task has other content than an earlier experiment recorded under the same name and version.

    Tasks that were reordered, added or removed are no changed tasks.
    """
    mine, found = _versions(record), dict[tuple[str, str], str]()
    for other in _find_earlier(record) if mine else ():
        theirs = _versions(other)
        for name, label in (key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key]):
            here, before = (_read_task_ids(one).get(label, {}) for one in (record, other))
            changed = sorted(task for task in here.keys() & before.keys() if here[task] != before[task])
            if changed:
                found[name, label] = (
                    f"{len(changed)} tasks of '{name}' have other content than in {other.folder.name}, first "
                    f"'{changed[0]}'. Restore them, or give the changed set another name"
                )
    return [found[key] for key in sorted(found)]


def find_left_out(record: ExperimentRecord) -> list[str]:
    """Earlier experiments that were scored on the same task set with more tasks, as far as their answers show."""
    sketch = _sketch(record)
    if not sketch or not record.start.text("family"):
        return []
    mine, found = _read_task_ids(record), list[str]()
    for other in _find_earlier(record):
        if share_questions(sketch, _sketch(other)) < _PART:  # reading all answers of all experiments takes long
            continue
        theirs = [set(one.values()) for one in _read_task_ids(other).values()]
        for name, tasks in mine.items():
            own = set(tasks.values())
            more = [len(one - own) for one in theirs if own and len(own & one) >= _PART * len(own) and one - own]
            if more:
                found.append(
                    f"{other.folder.name} was scored on the tasks of '{name}' and on {max(more)} more of the same set. "
                    "Score all of them, or claim nothing from a part"
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


def _versions(record: ExperimentRecord) -> dict[tuple[str, str], str]:
    """By name, version and split in the workspace, and by label in the config: the id of each set that was scored."""
    ids = [(text(one.get("id")), text(one.get("name"))) for run in record.runs[:1] for one in run.benchmarks]
    return {(one.rpartition("-")[0], label): one for one, label in ids if "-" in one}


def _read_task_ids(record: ExperimentRecord) -> dict[str, dict[str, str]]:
    """For each set that its first arm was scored on, the exact `task_id` of each task by its name."""
    found: dict[str, dict[str, str]] = {}
    for run in record.runs[:1]:
        for line in run.score_lines:
            split, name, step = text(line.get("split")), text(line.get("name")), number(line.get("step"))
            answers = run.read_answers(slug(f"{split}-{name}"), int(step or 0)) or []
            known = {text(one.get("task_id")): text(one.get("task")) for one in answers}
            # Records of earlier versions may lack the ids: nothing is known about such tasks.
            found.setdefault(name, {}).update({task: id for task, id in known.items() if task and id})
    return found
