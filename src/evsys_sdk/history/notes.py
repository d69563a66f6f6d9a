"""Notes, tags and invalidations of experiments, written as events into their journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, show
from ..record.anchors import note_head
from ..record.events import Journal, Kind
from ..record.reader import ExperimentRecord
from ..redact import redact_text
from .find import shortest


def add_note(folder: Path, text: str, *, author: str = "") -> str:
    """Write a note into the journal of an experiment; returns the id of the event."""
    text = _require_text(text, "The note is empty. Write its text.")
    return _append(folder, Kind.NOTE, text=text, **({"author": author} if author else {}))


def invalidate(folder: Path, reason: str) -> str:
    """Invalidate an experiment, so that it never counts as the best."""
    reason = _require_text(reason, "The reason is empty. Give it with --reason.")
    return _append(folder, Kind.INVALIDATED, reason=reason)


def reinstate(folder: Path, reason: str = "") -> str:
    """Undo an invalidation."""
    if not ExperimentRecord(folder).invalidated:
        raise DataError(f"{shortest(folder)}: this experiment is not invalidated, so there is nothing to undo.")
    return _append(folder, Kind.REINSTATED, reason=redact_text(" ".join(reason.split())))


def set_tags(folder: Path, tags: Sequence[str]) -> str:
    """Replace the tags of an experiment; `archived` hides it from the lists of a dashboard."""
    unique = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if bad := next((tag for tag in unique if "|" in tag or not tag.isprintable() or len(tag) > 80), None):
        raise DataError(f"tag {show(bad)}: a tag has at most 80 characters, without line breaks and bars.")
    return _append(folder, Kind.TAGGED, tags=[redact_text(tag) for tag in unique])


def _require_text(text: str, message: str) -> str:
    if not text.strip():
        raise DataError(f"{message} (got {show(text)})")
    return redact_text(text.strip())


def _append(folder: Path, kind: Kind, **payload: Any) -> str:
    with Journal.of(folder) as journal:
        event = journal.append(kind, **payload)
    note_head(folder)  # so that an event that is cut off again is detected
    return event
