"""Convert views, journals and workspace data on this disk to the shapes of the read API."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from ...data.workspace.inventory import Listing
from ...data.workspace.row_cache import CachedRows
from ...data.workspace.workspace import Workspace
from ...errors import WorkspaceError
from ...record.events import Kind
from ...record.jsonl_file import last_records
from ...record.layout import ExperimentFiles, RunFiles
from ...record.reader import ExperimentRecord
from ...record.values import Object, mtime, number, part, text
from ...record.view.model import ExperimentView
from ...redact import redact
from ..shapes.experiment import ControlRequest, Live, ShownExperiment
from ..shapes.record import DataEntries, DataEntry, DataRows, JournalLine
from ..views.curves import default_metric
from ..views.lists import shown
from ..views.source import DataKind, NotFound, read_cursor, write_cursor

_METRICS = RunFiles(Path()).logs.metrics.as_posix()
_RECENT = 40
_END_BYTES = 1 << 17
"""Bytes at the end of a metrics file that are read for `_RECENT` lines, for each running experiment of a list."""


def experiment_of(view: ExperimentView, *, line: bool = False) -> ShownExperiment:
    """A view in the shape of the API, complete or, with `line`, for a list."""
    live = _live(view) if view.is_live else None
    return shown(view, version_of(view.folder, unfinished=view.is_live), live, line=line)


def _live(view: ExperimentView) -> Live:
    """The progress of a running experiment, read from the ends of its files."""
    from ...experiment.jobs.live_status import experiment_status

    try:
        arms = experiment_status(view.folder).arms
    except (OSError, ValueError, KeyError):  # a file is being written; the next request reads it
        arms = []
    running = [arm for arm in arms if arm.state == "running"]
    steps = [(arm.step, arm.total_steps, arm.arm) for arm in running if arm.step is not None]
    step, total, name = max(steps, key=lambda at: at[0]) if steps else (None, None, "")
    latest = last_records(view.folder / name / _METRICS, _END_BYTES) if name else ()
    lines = [*islice(latest, _RECENT)][::-1]
    metric = default_metric([key for key in (lines[-1] if lines else {}) if key != "step"])
    recent = [value for line in lines if (value := number(line.get(metric))) is not None]
    return Live(arms_running=len(running), step=step, total_steps=total, metric=metric if recent else "", recent=recent)


def version_of(folder: Path, *, unfinished: bool) -> int:
    """The last change of an experiment's record, in milliseconds."""
    if unfinished:
        return int(ExperimentRecord(folder).last_activity * 1000)
    times = [mtime(ExperimentFiles(folder).journal), mtime(ExperimentFiles(folder).conclusion)]
    return max([int(at * 1000) for at in times if at is not None], default=0)


@lru_cache(maxsize=1 << 16)
def latest_of(fingerprint: str) -> int:
    """The latest time in a fingerprint, in milliseconds; cached, because each is read repeatedly."""
    # a fingerprint alternates times in nanoseconds and sizes
    return max([int(word) // 1_000_000 for word in fingerprint.split()[::2] if word.isdecimal()], default=0)


def checkpoint_of(line: Object) -> Object:
    """A checkpoint, without the fields that only a resume needs."""
    step = number(line.get("next_step")) or number(line.get("step"))
    return {
        "name": text(line.get("name")),
        "step": None if step is None else int(step),
        "path": text(line.get("sampler")) or text(line.get("state")),
        "final": line.get("final") is True,
        "metrics": part(line, "metrics"),
    }


def request_of(event: Object) -> ControlRequest:
    """A request from a journal; it is always `done`, because local requests are carried out immediately."""
    kinds: Any = {Kind.STOP_REQUESTED: "stop", Kind.APPROVED: "approve", Kind.REJECTED: "reject"}
    return ControlRequest(
        id=text(event.get("id")),
        kind=kinds[event["kind"]],
        subject=text(event.get("subject")),
        reason=text(event.get("reason")),
        author=text(event.get("author")),
        time=number(event.get("time")) or 0.0,
        state="done",
        answer=text(event.get("answer")),
    )


def event_of(line: Object) -> JournalLine:
    """A journal event in the shape of the API, redacted."""
    data = {key: value for key, value in line.items() if key not in ("id", "time", "kind")}
    return JournalLine(
        id=text(line.get("id")), time=number(line.get("time")), kind=text(line.get("kind")), data=redact(data)
    )


# Datasets and benchmarks of a project on this disk.


def local_entries(project: Path, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries:
    """A page of the datasets or benchmarks in the workspace and the data folder of the project."""
    begin = max(int(read_cursor(cursor, int)[0]), 0) if cursor else 0
    listings = [
        listing for listing in Workspace(project).list(kind) if listing.id and (not name or listing.name == name)
    ]
    page = listings[begin : begin + limit]
    following = write_cursor(begin + limit) if begin + limit < len(listings) else None
    return DataEntries(items=[_entry(kind, listing) for listing in page], next=following)


def local_rows(project: Path, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows:
    """A page of rows of the entry with this id; only ids that the workspace knows are used as paths."""
    begin = max(int(read_cursor(cursor, int)[0]), 0) if cursor else 0
    workspace = Workspace(project)
    entry = next((_entry(kind, listing) for listing in workspace.list(kind, derived=True) if listing.id == id), None)
    if entry is None:
        raise NotFound(kind, id)
    try:
        rows: CachedRows = workspace.pull_dataset(id=id) if kind == "dataset" else workspace.pull_benchmark(id=id)
    except WorkspaceError as error:
        raise NotFound(kind, f"{id}: {error}") from None
    page: list[dict[str, Any]] = [dict(row) for row in islice(rows.rows(), begin, begin + limit)]
    more = begin + len(page) < rows.manifest.rows
    return DataRows(entry=entry, rows=page, next=write_cursor(begin + len(page)) if more else None)


def _entry(kind: DataKind, listing: Listing) -> DataEntry:
    return DataEntry(
        id=listing.id or "",
        kind=kind,
        name=listing.name,
        version=listing.version,
        split=listing.split,
        rows=listing.rows,
        bytes=listing.bytes,
        format=listing.format or "",
        sha256="",
        created=None,
        metadata={} if listing.problem is None else {"problem": listing.problem},
    )
