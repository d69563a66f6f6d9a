"""Where the read API gets its answers from: the contract of `local/` (this disk) and `server/storage/` (a database).

A source knows what was recorded. What follows from it (tables, curves, flips, lineage) is computed once for both, by
`answers.py`, `curves.py` and `items.py`.
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
"""What the page of an experiment needs of its journal at once."""


class NotFound(EvsysError):
    """There is no such thing in this project."""

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"there is no {what} {show(id)} here.")


class BadQuery(EvsysError):
    """A question that has no answer; the message says what to ask instead."""


@dataclass(frozen=True, slots=True)
class ExperimentQuery:
    """Which experiments to list."""

    filters: Filters = field(default_factory=Filters)
    sort: str = "newest"
    limit: int = 50
    cursor: str = ""
    offset: int = 0
    """How many to skip where no cursor is given: for a list that is scrolled to any place."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which rollouts to list."""

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
    """How many to skip where no cursor is given: for a list that is scrolled to any place."""


@dataclass(frozen=True, slots=True)
class ArmFiles:
    """What an arm used and left behind."""

    checkpoints: Sequence[Object] = ()
    datasets: Sequence[Object] = ()
    benchmarks: Sequence[Object] = ()
    examples: str = ""
    story: str = ""


@dataclass(frozen=True, slots=True)
class ExperimentData:
    """What is recorded of one experiment, without what can be large."""

    experiment: ShownExperiment
    """The whole view."""
    config: Object
    conclusion: Object
    conclusion_text: str
    events: Sequence[JournalLine]
    """Those of `PAGE_EVENTS`, oldest first."""
    requests: Sequence[ControlRequest]
    commands: Mapping[str, str]
    log: str = ""

    @property
    def notes(self) -> list[SavedNote]:
        return [note_of(event) for event in self.events if event.kind == Kind.NOTE]

    @property
    def registered_at(self) -> float | None:
        """When its claim was fixed: with the first event, where that has its hash."""
        started = next((event for event in self.events if event.kind == Kind.STARTED), None)
        return started.time if started and started.data.get("hypothesis_sha256") else None

    @property
    def looks(self) -> list[Object]:
        """What each interim analysis of the claim found, as in the journal."""
        return [event.data for event in self.events if event.kind == Kind.LOOKED]


def note_of(event: JournalLine) -> SavedNote:
    """A note, which is an event too."""
    said, author = text(event.data.get("text")), text(event.data.get("author"))
    return SavedNote(id=event.id, text=said, author=author, time=event.time)


@dataclass(frozen=True, slots=True)
class Points:
    """One metric of one arm: steps in order, and the value at each (None where it was no finite number)."""

    steps: Sequence[float]
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is not as it was."""

    kind: str
    id: str
    version: int


class RecordSource(Protocol):
    """The record of one project."""

    def overview(self) -> Overview: ...
    def list_experiments(self, query: ExperimentQuery) -> Experiments: ...
    def experiment(self, id: str) -> ExperimentData: ...
    def experiments(self, ids: Sequence[str]) -> list[ShownExperiment]:
        """Those of the ids that are there."""
        ...

    def arm_files(self, id: str, arms: Sequence[str]) -> dict[str, ArmFiles]:
        """Of arms that `experiment` named."""
        ...

    def metric_names(self, id: str) -> list[str]: ...
    def points(self, id: str, arms: Sequence[str], metric: str) -> dict[str, Points]:
        """A metric of some arms; those that have none are left out."""
        ...

    def scores(self, id: str) -> dict[str, list[Object]]:
        """Every scoring of every arm, as in `scores.jsonl`, in the order of the steps."""
        ...

    def prompts(self, id: str, split: str, name: str) -> dict[str, str]:
        """What the tasks of a benchmark ask, by the names of the tasks, as far as it is known."""
        ...

    def rollouts(self, id: str, query: RolloutQuery) -> Rollouts: ...
    def rollout(self, id: str, rollout: str) -> RolloutDetail: ...
    def events(self, id: str, cursor: str, limit: int) -> Events: ...
    def spend_lines(self, id: str) -> list[Object]: ...
    def anchors(self, id: str) -> list[JournalAnchor]:
        """What was witnessed about its journal, oldest first."""
        ...

    def add_note(self, id: str, note: NewNote) -> SavedNote: ...
    def set_tags(self, id: str, tags: Tags) -> Tags: ...
    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest: ...
    def delete(self, id: str) -> None: ...
    def data_entries(self, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries: ...
    def data_rows(self, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows: ...
    def version(self) -> int: ...
    def changes(self, since: int) -> list[Change]:
        """What changed after a version, oldest first."""
        ...


# Where a page ends, as text that clients hand back unread.


def write_cursor(*place: Any) -> str:
    """A cursor that stands for a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The place a cursor stands for, if it has the given types; BadQuery otherwise."""
    try:
        place: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        place = None
    found = cast("list[Any]", place) if isinstance(place, list) else []
    if len(found) != len(kinds) or not all(map(_fits, found, kinds)):
        raise BadQuery("this cursor was not given out by this list. Begin again without one.")
    return found


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    # Cursors come from outside: numbers that no column holds and texts that PostgreSQL refuses end here.
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > 1 << 53):
        return False
    return isinstance(value, kind) and not (isinstance(value, str) and "\x00" in value)
