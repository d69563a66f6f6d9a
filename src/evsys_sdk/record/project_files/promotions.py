"""`promotions.jsonl`: which weights were judged, shipped and taken back, in order; a chain of hashes as any journal.

with PromotionLog.open() as log:
    log.append(Kind.DEPLOYED, deployment="production.3", ...)
for event in read_promotions(): ...
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from ...paths import workspace_dir
from ..events import Event, Journal, verify_chain
from ..jsonl_file import read_records
from ..layout import PROMOTIONS, lock_beside
from ..lock import exclusive


def promotions_file(start: Path | None = None) -> Path:
    """The project's list of promotions, which may not exist yet."""
    return workspace_dir(start) / PROMOTIONS


class PromotionLog(Journal):
    """Writes to the list, from any number of processes."""

    @classmethod
    def open(cls, start: Path | None = None) -> PromotionLog:
        return cls(promotions_file(start))


def promoting(start: Path | None = None) -> AbstractContextManager[None]:
    """Hold this while something is judged by the list and then added to it; waits for whoever has it."""
    file = promotions_file(start)
    return exclusive(lock_beside(file), str(file))


def read_promotions(start: Path | None = None) -> list[Event]:
    """Everything in the list, oldest first."""
    file = promotions_file(start)
    return [Event.of(line) for line in read_records(file)] if file.is_file() else []


def broken_promotions(start: Path | None = None) -> list[str]:
    """What is wrong with the list as a chain; nothing for one that is as it was written."""
    file = promotions_file(start)
    return verify_chain(file) if file.is_file() else []
