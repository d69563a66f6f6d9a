"""Which alerts were delivered: a list in the project's `.evsys/`, one line for each alert and target.

A line is written after the delivery: a process that is killed between the two delivers again, under the same id.
"""

from __future__ import annotations

import time

from ...paths import workspace_dir
from ..jsonl_file import JsonlFile, read_records
from ..layout import ALERTS
from ..values import number, text


def read_delivered() -> dict[tuple[str, str], float]:
    """(Target, id of the alert) -> when it was delivered."""
    file = workspace_dir() / ALERTS / "delivered.jsonl"
    lines = read_records(file) if file.is_file() else ()
    return {(text(one.get("target")), text(one.get("id"))): number(one.get("time")) or 0.0 for one in lines}


def note_delivered(target: str, id: str) -> None:
    """Add a delivery to the list."""
    with JsonlFile(workspace_dir() / ALERTS / "delivered.jsonl") as file:
        file.append({"target": target, "id": id, "time": time.time()})
