"""The journals of a project in its `.evsys/`, append-only and chained like those of experiments.

One for each campaign, and `promotions.jsonl`: which weights were judged, shipped and taken back, in order.

    with change_campaign(name) as (events, journal):      # no one else writes meanwhile
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
    """The folder of a campaign, which may not exist."""
    return workspace_dir() / CAMPAIGNS / name


def list_campaigns() -> list[str]:
    """The names of all campaigns of the project."""
    return sorted(name for name in subfolders(workspace_dir() / CAMPAIGNS) if read_campaign(name))


def verify_campaign(name: str) -> list[str]:
    """What is wrong with the journal of a campaign; nothing for one that is as it was written."""
    return verify_chain(ExperimentFiles(campaign_dir(name)).journal)


def read_campaign(name: str) -> list[Event]:
    """Everything that happened to a campaign, oldest first; nothing where there is none."""
    try:
        return list(read_events(campaign_dir(name)))
    except OSError:
        return []


@contextlib.contextmanager
def change_campaign(name: str) -> Generator[tuple[list[Event], Journal]]:
    """What happened so far, and the journal to add to; of several agents, one at a time."""
    folder = campaign_dir(name)
    file = ExperimentFiles(folder).journal
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(lock_beside(file), str(file)), Journal.of(folder) as journal:
        yield read_campaign(name), journal


def promotions_file(start: Path | None = None) -> Path:
    """The project's list of promotions, which may not exist yet."""
    return workspace_dir(start) / PROMOTIONS


class PromotionLog(Journal):
    """Writes to the list, from any number of processes."""

    @classmethod
    def open(cls, start: Path | None = None) -> PromotionLog:
        return cls(promotions_file(start))


def lock_promotions(start: Path | None = None) -> AbstractContextManager[None]:
    """Hold this while something is judged by the list and then added to it; waits for its owner."""
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
