"""A dashboard as the witness of journals: what it saw of them cannot be changed by who writes them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import DashboardClientError
from ..log import get_logger
from .client import DashboardClient
from .connection import Connection, Unreachable
from .upload import anchor_journal, experiment_id_of

_TIMEOUT_S = 5.0


def is_named() -> bool:
    """Whether the environment names a dashboard to ask."""
    return bool(os.environ.get("EVSYS_API_KEY", "").strip()) and not Connection.from_environment().offline


def read_anchors(folder: Path) -> list[dict[str, Any]]:
    """What the dashboard witnessed about the journal in a folder; nothing, with a warning, where it cannot be asked."""
    id = experiment_id_of(folder)
    try:
        path = f"/experiments/{quote(id, safe='')}/anchors"
        dashboard = Connection.from_environment()
        with closing(dashboard.open(_TIMEOUT_S)) as connection:
            found = dashboard.request("GET", path, connection=connection)
    except DashboardClientError as error:
        if isinstance(error, Unreachable) or error.status != 404:
            get_logger(__name__).warning("what the dashboard witnessed is not compared: %s", error)
        return []
    return found if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]


def note_anchor(folder: Path) -> None:
    """Let the dashboard witness a journal as it is now."""
    with DashboardClient() as client:
        client.update_experiment(experiment_id_of(folder), name=folder.name)
        anchor_journal(client, folder)
        client.flush(timeout_s=_TIMEOUT_S)
