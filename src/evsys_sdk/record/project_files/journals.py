"""The journals of a project in its `.evsys/`, append-only and chained like those of experiments.

One per campaign, and `promotions.jsonl` with the gates, deployments and rollbacks of weights.

    with change_campaign(name) as (events, journal):      # holds the lock
        journal.append(Kind.CAMPAIGN_PROPOSED, text="...")
    with PromotionLog.open() as log:
        log.append(Kind.DEPLOYED, deployment="production.3", ...)
    for event in read_promotions(): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path

from ...paths import workspace_dir
from ..events import Event, Journal, read_events, verify_chain
from ..jsonl_file import read_records
from ..layout import CAMPAIGNS, PROMOTIONS, ExperimentFiles, lock_beside
from ..lock import exclusive
from ..values import subfolders


def campaign_dir(name: str) -> Path:
    """The folder of a campaign; it may not exist."""
    return workspace_dir() / CAMPAIGNS / name


def list_campaigns() -> list[str]:
    """The names of all campaigns of the project."""
    return sorted(name for name in subfolders(workspace_dir() / CAMPAIGNS) if read_campaign(name))


def verify_campaign(name: str) -> list[str]:
    """The problems of a campaign's hash chain; empty for an intact journal."""
    return verify_chain(ExperimentFiles(campaign_dir(name)).journal)


def read_campaign(name: str) -> list[Event]:
    """The events of a campaign, oldest first; empty without a campaign."""
    try:
        return list(read_events(campaign_dir(name)))
    except OSError:
        return []


@contextlib.contextmanager
def change_campaign(name: str) -> Generator[tuple[list[Event], Journal]]:
    """The events of a campaign and its journal to append to, under a lock."""
    folder = campaign_dir(name)
    file = ExperimentFiles(folder).journal
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(lock_beside(file), str(file)), Journal.of(folder) as journal:
        yield read_campaign(name), journal


def promotions_file(start: Path | None = None) -> Path:
    """The project's list of promotions; the file may not exist."""
    return workspace_dir(start) / PROMOTIONS


class PromotionLog(Journal):
    """Writer of the list; safe to use from several processes."""

    @classmethod
    def open(cls, start: Path | None = None) -> PromotionLog:
        return cls(promotions_file(start))


def lock_promotions() -> AbstractContextManager[None]:
    """A lock to hold while reading the list and appending a decision; waits for its owner."""
    file = promotions_file()
    return exclusive(lock_beside(file), str(file))


def read_promotions(start: Path | None = None) -> list[Event]:
    """The events of the list, oldest first."""
    file = promotions_file(start)
    return [Event.of(line) for line in read_records(file)] if file.is_file() else []


def broken_promotions() -> list[str]:
    """The problems of the list's hash chain; empty for an intact list."""
    file = promotions_file()
    return verify_chain(file) if file.is_file() else []
