"""The journal of an experiment: one append-only file of everything that happened to it, oldest first.

Each line is an event with an id, so that history, uploads and resume are projections of it, and none of them ever
counts an event twice. Nothing in it is changed or removed, also not by a resumed or repeated run.

    journal = Journal(folder / "journal.jsonl")
    journal.append("arm_started", arm="sft__seed1")
    for event in read_journal(folder): ...
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from ..record.jsonl_file import JsonlFile, read_records

FILE_NAME = "journal.jsonl"
STARTED, RESUMED, ENDED = "experiment_started", "experiment_resumed", "experiment_ended"
ARM_STARTED, ARM_ENDED, ARM_RETRIED, ARM_RECALLED = "arm_started", "arm_ended", "arm_retried", "arm_recalled"
SEARCH_DECISION, BUDGET_STOP, CONCLUDED = "search_decision", "budget_stop", "concluded"


class Journal:
    """Writes the events of one experiment; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = JsonlFile(path)

    @classmethod
    def of(cls, experiment_dir: Path) -> Self:
        """The journal of an experiment, which may not have one yet."""
        return cls(experiment_dir / FILE_NAME)

    def append(self, kind: str, **payload: Any) -> str:
        """Add an event; it is on disk when this returns. Returns its id."""
        event_id = secrets.token_hex(6)
        self._file.append({"id": event_id, "time": time.time(), "kind": kind, **payload})
        return event_id

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(experiment_dir: Path) -> Iterator[dict[str, Any]]:
    """Every complete event, oldest first; an experiment of an older version has none."""
    return read_records(experiment_dir / FILE_NAME)


def experiment_id(experiment_dir: Path) -> str | None:
    """The id an experiment was given when it first started."""
    return next((event["experiment_id"] for event in read_journal(experiment_dir) if event["kind"] == STARTED), None)


def is_finished(experiment_dir: Path) -> bool:
    """Whether the last attempt to run it came to its end, rather than being killed or interrupted."""
    finished = False
    for event in read_journal(experiment_dir):
        if event["kind"] in (STARTED, RESUMED):
            finished = False
        elif event["kind"] == ENDED:
            finished = event.get("status") in ("completed", "failed")
    return finished
