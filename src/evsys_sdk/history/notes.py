"""Words added to the record afterwards: notes, and the mark that an experiment must not be believed.

Everything is an event in the journal of the experiment; nothing is changed or taken away.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import DataError, show
from ..redact import redact_text
from .reading import JOURNAL, read_lines
from .roots import shortest


def add_note(folder: Path, text: str, *, author: str = "") -> str:
    """Write a note into the journal of an experiment; returns the id of the event."""
    text = _said(text, "The note is empty. Write what you want to remember.")
    return _append(folder, "note", text=text, **({"author": author} if author else {}))


def invalidate(folder: Path, reason: str) -> str:
    """Mark an experiment as not to be believed, so that it never counts as the best."""
    reason = _said(reason, "An experiment is invalidated for a reason. Say it with --reason.")
    return _append(folder, "invalidated", reason=reason)


def reinstate(folder: Path, reason: str = "") -> str:
    """Take that mark back."""
    marks = [event for event in read_lines(folder / JOURNAL) if event.get("kind") in ("invalidated", "reinstated")]
    if not marks or marks[-1].get("kind") == "reinstated":
        raise DataError(f"{shortest(folder)}: this experiment is not invalidated, so there is nothing to undo.")
    return _append(folder, "reinstated", reason=redact_text(" ".join(reason.split())))


def _said(text: str, otherwise: str) -> str:
    if not text.strip():
        raise DataError(f"{otherwise} (got {show(text)})")
    return redact_text(text.strip())


def _append(folder: Path, kind: str, **payload: str) -> str:
    from ..experiment.journal import Journal  # takes its room a moment to load, and reading never needs it

    with Journal.of(folder) as journal:
        return journal.append(kind, **payload)
