"""The journal of an experiment: an append-only file of its events, oldest first.

Each line is an event with an id, so that history, uploads and resume count no event twice. No line is ever changed or
removed. Each event carries the hash of the line before it, so that changes are detected (`verify_chain`).

    with Journal.of(folder) as journal:
        journal.append(Kind.ARM_STARTED, arm="sft__seed1")
    for event in read_events(folder): ...
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..redact import redact_text
from .jsonl_file import JsonlFile, complete_lines, parse_object, parse_text, read_records, read_whole
from .layout import ExperimentFiles
from .values import Object, items, number, part, text

FORMAT = 2
"""Version of the record. Events of version 1 have neither a version nor a hash."""
_CHAINED_SINCE = 2
_DIGITS = 32
"""Hex digits of a sha256 that are kept; 128 bits still resist forgery."""


class Kind(StrEnum):
    """The kinds of events of experiments, campaigns and deployments."""

    STARTED = "experiment_started"
    RESUMED = "experiment_resumed"
    ENDED = "experiment_ended"
    ARM_STARTED = "arm_started"
    ARM_ENDED = "arm_ended"
    ARM_RETRIED = "arm_retried"
    ARM_RECALLED = "arm_recalled"
    SEARCH_DECISION = "search_decision"
    LOOKED = "looked"
    BUDGET_STOP = "budget_stop"
    SCORED = "scored"
    DIAGNOSED = "diagnosed"
    TRAINED_ON = "tasks_trained_on"
    WEIGHTS_LOADED = "weights_loaded"
    CONCLUDED = "concluded"
    AUDITED = "audited"
    NOTE = "note"
    INVALIDATED = "invalidated"
    REINSTATED = "reinstated"
    TAGGED = "tagged"
    CAMPAIGN_OPENED = "campaign_opened"
    CAMPAIGN_PROPOSED = "campaign_proposed"
    CAMPAIGN_TAKEN = "campaign_taken"
    CAMPAIGN_APPROVED = "campaign_approved"
    CAMPAIGN_ADMITTED = "campaign_admitted"
    CAMPAIGN_DECIDED = "campaign_decided"
    CAMPAIGN_CLOSED = "campaign_closed"
    STOP_REQUESTED = "stop_requested"
    APPROVAL_AWAITED = "approval_awaited"
    APPROVED = "request_approved"
    REJECTED = "request_rejected"
    GATED = "gated"
    DEPLOYED = "deployed"
    STAGED = "staged"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=TYPE_CHECKING, slots=True)  # there are thousands; see `RunRecord`
class Event:
    """One line of a journal."""

    kind: str
    """A `Kind`, or the text of a kind that a later version added."""
    id: str = ""
    time: float | None = None
    payload: Object = field(default_factory=dict[str, Any])
    format: int = 1
    prev: str = ""

    @classmethod
    def of(cls, line: Object) -> Self:
        """The event in a line of the journal; it keeps `line`. Missing or damaged fields get their default."""
        take = line.pop
        kind, own_id, prev, version = take("kind", ""), take("id", ""), take("prev", ""), take("format", 1)
        if not type(kind) is type(own_id) is type(prev) is str:
            kind, own_id, prev = text(kind), text(own_id), text(prev)
        version = version if type(version) is int else int(number(version) or 1)
        return cls(kind, own_id, number(take("time", None)), line, version or 1, prev)

    def get(self, name: str) -> Any:
        """A field of the payload; None if it is missing."""
        return self.payload.get(name)

    def text(self, name: str) -> str:
        """A text field of the payload; empty if it is missing or no text."""
        return text(self.payload.get(name))

    def part(self, name: str) -> Object:
        """An object field of the payload; empty if it is missing or no object."""
        return part(self.payload, name)

    def to_dict(self) -> Object:
        """The event without format version and hash."""
        return {"id": self.id, "time": self.time, "kind": str(self.kind), **self.payload}


class Journal:
    """The writer of a journal; safe to use from several processes."""

    def __init__(self, path: Path) -> None:
        self._file = JsonlFile(path)

    @classmethod
    def of(cls, experiment_dir: Path) -> Self:
        """The journal of an experiment; the file is created if it is missing."""
        return cls(ExperimentFiles(experiment_dir).journal)

    def append(self, kind: Kind, **payload: Any) -> str:
        """Add an event; it is on disk when this returns. Returns its id."""
        event_id = os.urandom(6).hex()
        fixed = {"format": FORMAT, "id": event_id, "time": time.time(), "kind": str(kind)}
        # Twice: first for the order of the keys, then so that the payload cannot replace these fields.
        self._file.append_after(lambda last: {**fixed, **payload, **fixed, "prev": digest(last)})
        return event_id

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def note_finding(run_dir: Path, *, step: int, finding: str, text: str) -> bool:
    """Write a finding about an arm into the experiment's journal, once per arm, also if a resumed arm reports it again.

    Returns whether no other arm of the experiment has the same finding.
    """
    folder = run_dir.parent
    findings = [
        event for event in read_events(folder) if event.kind == Kind.DIAGNOSED and event.text("finding") == finding
    ]
    arms = {event.text("arm") for event in findings}
    if ExperimentFiles(folder).journal.exists() and run_dir.name not in arms:
        with Journal.of(folder) as journal:
            journal.append(Kind.DIAGNOSED, arm=run_dir.name, step=step, finding=finding, text=text)
    return not arms - {run_dir.name}


def note_trained_tasks(run_dir: Path, tasks: Mapping[str, list[str]]) -> None:
    """Write into the experiment's journal which benchmark tasks an arm is about to train on."""
    if ExperimentFiles(run_dir.parent).journal.exists():
        with Journal.of(run_dir.parent) as journal:
            journal.append(Kind.TRAINED_ON, arm=run_dir.name, tasks=tasks)


def note_loaded_weights(run_dir: Path, ref: str) -> None:
    """Write into the experiment's journal that an arm loads weights of another source."""
    if ExperimentFiles(run_dir.parent).journal.exists():
        with Journal.of(run_dir.parent) as journal:
            journal.append(Kind.WEIGHTS_LOADED, arm=run_dir.name, ref=redact_text(ref))


def read_trained_tasks(events: Iterable[Event]) -> dict[str, dict[str, list[str]]]:
    """Arm -> benchmark -> the tasks that the arm trained on, as noted during training."""
    tasks_by_arm: dict[str, dict[str, dict[str, None]]] = {}
    for event in events:
        for benchmark in event.part("tasks") if event.kind == Kind.TRAINED_ON else ():
            tasks = tasks_by_arm.setdefault(event.text("arm"), {}).setdefault(benchmark, {})
            tasks |= dict.fromkeys(str(task) for task in items(event.part("tasks").get(benchmark)))
    return {arm: {name: [*tasks] for name, tasks in benchmarks.items()} for arm, benchmarks in tasks_by_arm.items()}


def read_events(experiment_dir: Path) -> Iterator[Event]:
    """Every complete event, oldest first; empty without a journal."""
    return map(Event.of, read_records(ExperimentFiles(experiment_dir).journal))


_WORTH_CACHING = 1 << 16
_MOST_CACHED = 4
_cache: dict[str, tuple[bytes, list[Event]]] = {}
"""Cache of long journals: path -> content and events, most recently used last."""
_cache_lock = threading.Lock()


def load_events(experiment_dir: Path) -> list[Event]:
    """All events as a list. A long journal is cached, so that reading it again parses only the new lines."""
    path = ExperimentFiles.journal.below(experiment_dir)
    content = read_whole(path) or b""
    content = content[: content.rfind(b"\n") + 1]  # the rest is a line that is being written
    # `pop`, so that two threads that read at once never share a list.
    cached, events = _cache.pop(path, (b"", list[Event]()))
    if not content.startswith(cached):  # the file was changed, not only appended to
        cached, events = b"", []
    events = [*events, *map(Event.of, parse_text(content[len(cached) :], path, cached.count(b"\n") + 1))]
    if len(content) >= _WORTH_CACHING:
        with _cache_lock:
            _cache[path] = (content, events)
            for oldest in list(_cache)[:-_MOST_CACHED]:
                _cache.pop(oldest, None)
    return [*events]  # a copy, so that callers cannot change the cache


def first_event(experiment_dir: Path) -> Event | None:
    """The first event of a journal, without reading the rest; None without one."""
    try:
        return next(read_events(experiment_dir), None)
    except OSError:
        return None


def count_events(experiment_dir: Path) -> int:
    """The number of complete events."""
    return sum(1 for _ in complete_lines(ExperimentFiles(experiment_dir).journal))


def digest(line: bytes) -> str:
    """The hash of a line, as the next event carries it; empty for an empty line."""
    return hashlib.sha256(line).hexdigest()[:_DIGITS] if line else ""


def verify_chain(path: Path) -> list[str]:
    """The problems of a journal's hash chain, in order; empty for an intact journal.

    Detects lines that were changed, removed, inserted or moved. A half-written last line, which a killed process
    leaves, is no problem. Lines cut off at the end are not detected: compare the number of events, or the hash of the
    last event, with an anchor.
    """
    problems: list[str] = []
    unchained, chained, before = 0, False, b""
    for line_number, line in complete_lines(path):
        line, record = line[:-1], parse_object(line)
        where, expected = f"{path}:{line_number}", digest(before)
        if record is None:
            problems.append(f"{where}: this line is damaged.")
        elif int(number(record.get("format")) or 1) < _CHAINED_SINCE:
            unchained += not chained
            if chained:
                problems.append(f"{where}: this line has no hash although lines before it do.")
        else:
            chained = True
            if record.get("prev") != expected:
                problems.append(f"{where}: the line before it is not the one it was written after.")
        before = line  # damaged or not, the next line carries its hash
    if unchained:
        problem = f"{unchained} events are of version 1, which kept no hashes, so changes to them cannot be detected."
        problems.insert(0, f"{path}: {problem}")
    return problems


def chain_head(path: Path) -> str:
    """The hash of the last complete line. Noted elsewhere, it proves that no earlier line was changed since."""
    last = b""
    for _, line in complete_lines(path):
        last = line[:-1]
    return digest(last)
