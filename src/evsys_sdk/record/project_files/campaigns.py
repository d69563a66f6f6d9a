"""The journals of campaigns, in the project's `.evsys/`: append-only and chained like those of experiments.

with change_campaign(name) as (events, journal):      # nobody else writes meanwhile
    journal.append(Kind.CAMPAIGN_PROPOSED, text="...")
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from ...paths import workspace_dir
from ..events import Event, Journal, read_events, verify_chain
from ..layout import CAMPAIGNS, ExperimentFiles, lock_beside
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
