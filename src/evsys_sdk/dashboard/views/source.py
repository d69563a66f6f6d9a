"""The data source of the read API: the interface of `local/` (this disk) and `server/storage/` (a database).

A source returns recorded data. Tables, curves, comparisons by task and lineage are computed from it by `answers.py`,
`curves.py` and `items.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from ...errors import EvsysError, show
from ...history.query import Filters
from ...record.events import Kind
from ...record.values import text
from ..shapes.experiment import (
    ControlRequest,
    Experiments,
    NewControlRequest,
    NewNote,
    Overview,
    SavedNote,
    ShownExperiment,
    Tags,
)
from ..shapes.record import DataEntries, DataRows, Events, JournalAnchor, JournalLine, RolloutDetail, Rollouts

type Object = dict[str, Any]
type DataKind = Literal["dataset", "benchmark"]
LARGEST_PAGE = 1000
PAGE_EVENTS = (Kind.STARTED, Kind.NOTE, Kind.LOOKED)
"""Kinds of events that the page of an experiment loads at once."""


class NotFound(EvsysError):
    """The project has no such object."""

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"there is no {what} {show(id)} here.")


class BadQuery(EvsysError):
    """An invalid query; the message says how to correct it."""


@dataclass(frozen=True, slots=True)
class ExperimentQuery:
    """Filters, order and page of a list of experiments."""

    filters: Filters = field(default_factory=Filters)
    sort: str = "newest"
    limit: int = 50
    cursor: str = ""
    offset: int = 0
    """Number of items to skip if no cursor is given, for lists that scroll to any position."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Filters and page of a list of rollouts."""

    arm: str = ""
    split: str = ""
    name: str = ""
    step: int | None = None
    task: str = ""
    outcome: str = ""
    """passed (reward at least 1), failed (less), or error (no reward at all)."""
    min_reward: float | None = None
    max_reward: float | None = None
    search: str = ""
    limit: int = 50
    cursor: str = ""
    offset: int = 0
    """Number of items to skip if no cursor is given, for lists that scroll to any position."""


@dataclass(frozen=True, slots=True)
class ArmFiles:
    """The inputs and outputs of an arm."""

    checkpoints: Sequence[Object] = ()
    datasets: Sequence[Object] = ()
    benchmarks: Sequence[Object] = ()
    examples: str = ""
    story: str = ""


@dataclass(frozen=True, slots=True)
class ExperimentData:
    """The recorded data of one experiment, without the parts that can be large."""

    experiment: ShownExperiment
    """The complete view."""
    config: Object
    conclusion: Object
    conclusion_text: str
    events: Sequence[JournalLine]
    """Events of the kinds in `PAGE_EVENTS`, oldest first."""
    requests: Sequence[ControlRequest]
    commands: Mapping[str, str]
    log: str = ""

    @property
    def notes(self) -> list[SavedNote]:
        return [note_of(event) for event in self.events if event.kind == Kind.NOTE]

    @property
    def registered_at(self) -> float | None:
        """The time its hypothesis was registered: the start event, if it contains the hash; else None."""
        started = next((event for event in self.events if event.kind == Kind.STARTED), None)
        return started.time if started and started.data.get("hypothesis_sha256") else None

    @property
    def looks(self) -> list[Object]:
        """The result of each interim analysis, as in the journal."""
        return [event.data for event in self.events if event.kind == Kind.LOOKED]


def note_of(event: JournalLine) -> SavedNote:
    """Convert a journal event to a note."""
    content, author = text(event.data.get("text")), text(event.data.get("author"))
    return SavedNote(id=event.id, text=content, author=author, time=event.time)


@dataclass(frozen=True, slots=True)
class Points:
    """One metric of one arm: steps in order, and the value at each (None if it was not finite)."""

    steps: Sequence[float]
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed object and its new version."""

    kind: str
    id: str
    version: int


class RecordSource(Protocol):
    """The recorded data of one project."""

    def overview(self) -> Overview: ...
    def list_experiments(self, query: ExperimentQuery) -> Experiments: ...
    def experiment(self, id: str) -> ExperimentData: ...
    def experiments(self, ids: Sequence[str]) -> list[ShownExperiment]:
        """The experiments with these ids; unknown ids are skipped."""
        ...

    def arm_files(self, id: str, arms: Sequence[str]) -> dict[str, ArmFiles]:
        """The files of arms of the experiment, by arm."""
        ...

    def metric_names(self, id: str) -> list[str]: ...
    def points(self, id: str, arms: Sequence[str], metric: str) -> dict[str, Points]:
        """A metric by arm; arms without it are left out."""
        ...

    def scores(self, id: str) -> dict[str, list[Object]]:
        """Every scoring of every arm, as in `scores.jsonl`, in the order of the steps."""
        ...

    def prompts(self, id: str, split: str, name: str) -> dict[str, str]:
        """The prompts of a benchmark's tasks by task, as far as they are known."""
        ...

    def rollouts(self, id: str, query: RolloutQuery) -> Rollouts: ...
    def rollout(self, id: str, rollout: str) -> RolloutDetail: ...
    def events(self, id: str, cursor: str, limit: int) -> Events: ...
    def spend_lines(self, id: str) -> list[Object]: ...
    def anchors(self, id: str) -> list[JournalAnchor]:
        """The anchors of its journal, oldest first."""
        ...

    def add_note(self, id: str, note: NewNote) -> SavedNote: ...
    def set_tags(self, id: str, tags: Tags) -> Tags: ...
    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest: ...
    def delete(self, id: str) -> None: ...
    def data_entries(self, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries: ...
    def data_rows(self, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows: ...
    def version(self) -> int: ...
    def changes(self, since: int) -> list[Change]:
        """The changes after a version, oldest first."""
        ...


# Cursors: the end of a page as opaque text.


def write_cursor(*place: Any) -> str:
    """Encode a position in a list as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """Decode a cursor; raise BadQuery if its values do not have the given types."""
    try:
        place: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        place = None
    values = cast("list[Any]", place) if isinstance(place, list) else []
    if len(values) != len(kinds) or not all(map(_fits, values, kinds)):
        raise BadQuery("this cursor does not belong to this list. Begin again without one.")
    return values


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    # Cursors are untrusted: reject numbers that exceed a column and NUL, which PostgreSQL rejects.
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > 1 << 53):
        return False
    return isinstance(value, kind) and not (isinstance(value, str) and "\x00" in value)
