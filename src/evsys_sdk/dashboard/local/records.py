"""The experiments of one project on this disk, for the read API; nothing is uploaded.

This module and its neighbours read all files for the dashboard, with the readers of `record/` and `history/`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import EvsysError
from ...history.attention import AttentionItem, find_project_attention, in_order
from ...history.detail import commands, read_detail
from ...history.index import HistoryIndex, fingerprint
from ...history.notes import add_note, set_tags
from ...history.views.answers import task_texts
from ...paths import workspace_dir
from ...record.approvals import decide_approval
from ...record.events import Journal, Kind
from ...record.layout import ExperimentFiles, RunFiles
from ...record.lock import lock_owner
from ...record.reader import ExperimentRecord
from ...record.values import Object, find_row, items, mtime, number, part, read_lines, text
from ...record.view.model import ArmView, ExperimentView
from ...record.view.question import is_score
from ...redact import redact, redact_text, without_secrets
from ..shapes.experiment import ControlRequest, NewControlRequest, NewNote, Progress, SavedNote, ShownExperiment, Tags
from ..shapes.record import DataEntries, DataRows, Events, JournalAnchor, RolloutDetail, Rollouts
from ..views.lists import RecordLists
from ..views.rollouts import list_rollouts, read_rollout
from ..views.source import (
    PAGE_EVENTS,
    ArmFiles,
    BadQuery,
    Change,
    DataKind,
    ExperimentData,
    NotFound,
    Points,
    RolloutQuery,
    note_of,
    read_cursor,
    write_cursor,
)
from .index import LocalIndex
from .metrics import LocalMetrics
from .rollouts import RolloutIndex, read_tasks
from .rows import (
    checkpoint_of,
    event_of,
    experiment_of,
    latest_of,
    local_entries,
    local_rows,
    request_of,
    version_of,
)

_REQUESTS = (Kind.STOP_REQUESTED, Kind.APPROVED, Kind.REJECTED)
_SETTLED = ("completed", "failed", "budget")
_MOST_FINISHED = 8
_MOST_INDEXES = 4
"""Number of experiments whose rollout index is kept in memory."""
_END_BYTES = 1 << 14


class LocalRecords(RecordLists):
    """The experiments below some folders; thread-safe."""

    def __init__(self, roots: Sequence[Path], project: Path) -> None:
        self.roots, self.project = list(roots), project
        self._index = LocalIndex(roots)
        self._rollouts = lru_cache(maxsize=_MOST_INDEXES)(RolloutIndex)
        self.metrics = LocalMetrics()
        self._finished: dict[Path, tuple[str, ExperimentData]] = {}
        """Folder of an ended experiment -> the fingerprint of its files, and its data."""
        self._lock = threading.Lock()

    # -- lists ---------------------------------------------------------------------------------------------------------

    def views(self) -> HistoryIndex:
        """The current views."""
        return self._index.open()

    def show(self, view: ExperimentView) -> ShownExperiment:
        return experiment_of(view, line=True)

    def progress(self, n_indexed: int) -> Progress | None:
        return self._index.progress(n_indexed)

    def attention(self, views: Sequence[ExperimentView]) -> list[AttentionItem]:
        return in_order([*super().attention(views), *find_project_attention(views)])

    # -- one experiment ------------------------------------------------------------------------------------------------

    def experiment(self, id: str) -> ExperimentData:
        folder = self._folder(id)
        state = fingerprint(str(folder))
        with self._lock:
            cached = self._finished.get(folder)
        if cached is not None and cached[0] == state:
            return cached[1]
        # The index has a valid view if it read the files with the same fingerprint.
        with self._index.open() as index:
            same = index.views("id = ? AND fingerprint = ?", [id, state])
            summary = next((view for view in same if view.folder == folder and view.status in _SETTLED), None)
        data = self._read_experiment(folder, summary)
        # Only ended experiments are cached: a process that dies changes no file.
        if data.experiment.status in _SETTLED:
            with self._lock:
                self._finished.pop(folder, None)  # moves it to the end, to be evicted last
                self._finished[folder] = (state, data)
                if len(self._finished) > _MOST_FINISHED:
                    self._finished.pop(next(iter(self._finished)))
        return data

    def _read_experiment(self, folder: Path, summary: ExperimentView | None) -> ExperimentData:
        detail = read_detail(folder, summary)
        events = list(read_lines(ExperimentFiles(detail.folder).journal))
        # The latest metrics of an unfinished arm are only in its own log files.
        arms = [arm if arm.metrics else self._with_metrics(folder, arm) for arm in detail.view.arms]
        return ExperimentData(
            experiment=replace(experiment_of(detail.view), arms=arms),
            config=detail.config,
            conclusion=without_secrets(detail.conclusion),
            conclusion_text=read_text(ExperimentFiles(detail.folder).conclusion_page),
            events=[event_of(line) for line in events if line.get("kind") in PAGE_EVENTS],
            requests=[request_of(event) for event in events if event.get("kind") in _REQUESTS],
            commands=commands(detail),
            log=read_end(ExperimentFiles(detail.folder).console),
        )

    def _with_metrics(self, folder: Path, arm: ArmView) -> ArmView:
        step = self.metrics.furthest(folder / arm.arm) if arm.step is None else arm.step
        return replace(arm, metrics=self.metrics.last(folder / arm.arm), step=step)

    def arm_files(self, id: str, arms: Sequence[str]) -> dict[str, ArmFiles]:
        folder = self._folder(id)
        return {arm: _read_arm(RunFiles(folder / arm)) for arm in arms}

    def metric_names(self, id: str) -> list[str]:
        folder = self._folder(id)
        names = {name for arm in _arms(folder) for name in self.metrics.read(folder / arm)}
        return sorted(names, key=lambda name: (is_score(name), name))

    def points(self, id: str, arms: Sequence[str], metric: str) -> dict[str, Points]:
        folder = self._folder(id)
        arm_names = set(_arms(folder))
        points: dict[str, Points] = {}
        for arm in arms:
            values = self.metrics.read(folder / arm).get(metric) if arm in arm_names else None
            if values:
                steps = sorted(values)
                points[arm] = Points(steps, [values[step] for step in steps])
        return points

    def scores(self, id: str) -> dict[str, list[Object]]:
        folder = self._folder(id)
        scores: dict[str, list[Object]] = {}
        for arm in _arms(folder):
            latest: dict[tuple[float, str, str], Object] = {}
            for line in read_lines(ExperimentFiles(folder).run(arm).scores):
                latest[number(line.get("step")) or 0.0, text(line.get("split")), text(line.get("name"))] = line
            scores[arm] = [latest[key] for key in sorted(latest)]
        return scores

    def rollouts(self, id: str, query: RolloutQuery) -> Rollouts:
        folder = self._folder(id)
        return list_rollouts(self._open_rollouts(folder), query)

    def rollout(self, id: str, rollout: str) -> RolloutDetail:
        return read_rollout(self._open_rollouts(self._folder(id)), rollout)

    def _open_rollouts(self, folder: Path) -> RolloutIndex:
        index = self._rollouts(folder)
        index.refresh(_arms(folder))
        return index

    def prompts(self, id: str, split: str, name: str) -> dict[str, str]:
        tasks = read_tasks(self._folder(id), split, name).values()
        return {task.task_id: task_texts(task)["prompt"] for task in tasks}

    def events(self, id: str, cursor: str, limit: int) -> Events:
        begin = int(read_cursor(cursor, int)[0]) if cursor else 0
        lines = list(read_lines(ExperimentFiles(self._folder(id)).journal))
        page = lines[max(begin, 0) : max(begin, 0) + limit]
        end = max(begin, 0) + len(page)
        return Events(items=[event_of(line) for line in page], next=write_cursor(end) if end < len(lines) else None)

    def spend_lines(self, id: str) -> list[Object]:
        return list(read_lines(ExperimentFiles(self._folder(id)).spend))

    def anchors(self, id: str) -> list[JournalAnchor]:
        self._folder(id)
        return []  # a local record has no independent witness

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_note(self, id: str, note: NewNote) -> SavedNote:
        folder = self._folder(id)
        return note_of(event_of(_find_event(folder, add_note(folder, note.text, author=note.author))))

    def set_tags(self, id: str, tags: Tags) -> Tags:
        set_tags(self._folder(id), tags.tags)
        return tags

    def delete(self, id: str) -> None:
        """Move an experiment to the folder `deleted`; its hypotheses still count as trials of the project."""
        folder = self._folder(id)
        if lock_owner(folder) is not None:
            raise BadQuery(f"{id} is running. Stop it before you delete it.")
        target = workspace_dir(folder) / "deleted" / f"{id}-{time.time():.0f}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, target)

    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest:
        from ...experiment.jobs.background import cancel

        folder = self._folder(id)
        if request.kind == "stop":
            try:
                outcome = cancel(folder, patience_s=0.0)  # does not wait; the page shows the status change
            except EvsysError as error:
                raise BadQuery(str(error)) from None
            answer = "it finishes its steps and stops" if outcome["was_running"] else "it was not running"
            about = {"subject": request.subject, "reason": request.reason, "author": request.author}
            with Journal.of(folder) as journal:
                event_id = journal.append(Kind.STOP_REQUESTED, **redact(about), answer=answer)
        else:
            yes = request.kind == "approve"
            try:
                event_id = decide_approval(folder, approve=yes, reason=request.reason, author=request.author)
            except EvsysError:
                raise BadQuery("this experiment does not wait for an approval.") from None
        return request_of(_find_event(folder, event_id))

    def data_entries(self, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries:
        return local_entries(self.project, kind, name, limit, cursor)

    def data_rows(self, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows:
        return local_rows(self.project, kind, id, limit, cursor)

    def version(self) -> int:
        return max((version for _, version in self._versions()), default=0)

    def changes(self, since: int) -> list[Change]:
        """Experiments whose files changed after a time in milliseconds."""
        changes = [Change("experiment", id, version) for id, version in self._versions() if version > since]
        return sorted(changes, key=lambda change: change.version)

    def _versions(self) -> Iterator[tuple[str, int]]:
        """Yield id and last change of each experiment; for ended ones without reading the disk."""
        with self._index.open() as index:
            rows = index.rows_by_root(("id", "folder", "fingerprint", "unfinished"))
        for root, several in rows:
            for id, folder, state, unfinished in several:
                latest = 0 if unfinished else latest_of(state)
                yield id, latest or version_of(root / folder, unfinished=bool(unfinished))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _folder(self, id: str) -> Path:
        """The folder of an experiment, looked up in the index: ids of requests are never used as paths."""
        with self._index.open() as index:
            matches = index.rows_by_root(("folder",), "id = ?", [id])
        folders = [root / row[0] for root, rows in matches for row in rows]
        if not folders:
            raise NotFound("experiment", id)
        # A copied folder has the id of its original; the one that changed last is used.
        return max(folders, key=lambda folder: mtime(folder) or 0.0)


@lru_cache(maxsize=64)
def _list_arms(folder: Path, _: tuple[float | None, ...]) -> list[str]:
    return [arm.name for arm in ExperimentRecord(folder).runs]


def _arms(folder: Path) -> list[str]:
    """The arms of an experiment, cached until its folder, journal or config changes."""
    files = ExperimentFiles(folder)
    return _list_arms(folder, (mtime(folder), mtime(files.journal), mtime(files.config)))


def _find_event(folder: Path, id: str) -> Object:
    return find_row(read_lines(ExperimentFiles(folder).journal), "id", id)


def _read_arm(files: RunFiles) -> ArmFiles:
    return ArmFiles(
        checkpoints=[checkpoint_of(line) for line in read_lines(files.checkpoints)],
        datasets=read_list(files.datasets),
        benchmarks=read_list(files.benchmarks),
        examples=read_text(files.examples),
        story=read_text(files.logs.conclusion),
    )


def read_list(path: Path) -> list[Object]:
    """The objects in a JSON file with a list; empty if it cannot be read."""
    from json import loads

    try:
        values: Any = loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [part({"it": value}, "it") for value in items(values)]


def read_end(path: Path) -> str:
    """The last lines of a file, redacted; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            return redact_text(file.read().decode(errors="replace").partition("\n")[2].strip())
    except OSError:
        return ""


def read_text(path: Path) -> str:
    """The text of a file, redacted; empty if it cannot be read."""
    try:
        return redact_text(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
