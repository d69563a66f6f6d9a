"""Read the journal anchors and requests of an experiment from a dashboard; the experiment cannot change anchors."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from ...errors import DashboardClientError
from ...log import get_logger
from .client import DashboardClient
from .connection import Connection, Unreachable
from .upload import anchor_journal, experiment_id_of

_TIMEOUT_S = 5.0


def is_named() -> bool:
    """Whether the environment sets a dashboard and the client is not offline."""
    return bool(os.environ.get("EVSYS_API_KEY", "").strip()) and not Connection.from_environment().offline


def read_anchors(folder: Path) -> list[dict[str, Any]]:
    """The anchors of the journal in a folder; empty, with a warning, if the request fails."""
    try:
        return _read(f"/experiments/{experiment_id_of(folder)}/anchors")
    except DashboardClientError as error:
        get_logger(__name__).warning("what the dashboard witnessed is not compared: %s", error)
        return []


def read_requests(experiment_id: str) -> list[dict[str, Any]]:
    """The requests for an experiment, oldest first; empty if the dashboard cannot be reached."""
    try:
        return _read(f"/experiments/{experiment_id}/requests")
    except Unreachable:
        return []


def read_open_requests(about: str) -> list[dict[str, Any]]:
    """The open requests for `campaign:NAME` or `loop:NAME`; empty if the dashboard cannot be reached."""
    try:
        return _read(f"/sdk/experiments/{about}/requests/") if is_named() else []
    except Unreachable:
        return []


def _read(path: str) -> list[dict[str, Any]]:
    dashboard = Connection.from_environment()
    try:
        with closing(dashboard.open(_TIMEOUT_S)) as connection:
            rows = dashboard.request("GET", path, connection=connection)
    except DashboardClientError as error:
        if isinstance(error, Unreachable) or error.status != 404:
            raise
        return []  # unknown experiment
    return rows if isinstance(rows, list) else []  # pyright: ignore[reportUnknownVariableType]


def note_anchor(folder: Path) -> None:
    """Report the current length and hash of a journal to the dashboard."""
    with DashboardClient() as client:
        client.update_experiment(experiment_id_of(folder), name=folder.name)
        anchor_journal(client, folder)
        client.flush(timeout_s=_TIMEOUT_S)
