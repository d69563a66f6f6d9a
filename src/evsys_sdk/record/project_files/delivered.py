"""The delivered alerts: a list in the project's `.evsys/`, one line per alert and target.

A line is written after the delivery. A process that is killed in between delivers the alert again, with the same id.
"""

from __future__ import annotations

import time

from ...paths import workspace_dir
from ..jsonl_file import JsonlFile, read_records
from ..layout import ALERTS
from ..values import number, text


def read_delivered() -> dict[tuple[str, str], float]:
    """(Target, id of the alert) -> time of delivery."""
    file = workspace_dir() / ALERTS / "delivered.jsonl"
    lines = read_records(file) if file.is_file() else ()
    return {(text(line.get("target")), text(line.get("id"))): number(line.get("time")) or 0.0 for line in lines}


def note_delivered(target: str, id: str) -> None:
    """Append a delivery to the list."""
    with JsonlFile(workspace_dir() / ALERTS / "delivered.jsonl") as file:
        file.append({"target": target, "id": id, "time": time.time()})
