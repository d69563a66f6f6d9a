"""Lines of a record without what differs from run to run: durations, names of attempts, the order of answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_VOLATILE = {"seconds", "ts", "time", "model", "key"}
"""Durations, moments, and names of attempts."""


_NOT_COMPARED = {"starts.jsonl", "checkpoints.jsonl", "artifacts.jsonl", "timing.jsonl"}


def is_compared(path: Path) -> bool:
    """Whether a run that was killed must leave this file as another one does; a second scoring has a number."""
    return path.name not in _NOT_COMPARED and re.search(r"\.\d+\.jsonl$", path.name) is None


def timeless(path: Path) -> list[str]:
    """The lines of a JSONL file in alphabetical order, each once, without durations."""
    lines = path.read_bytes().split(b"\n")  # not splitlines: an answer may hold other ends of lines
    return sorted({json.dumps(_strip(record)) for line in lines if (record := _read(line)) is not None})


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # the last line of a killed process, which readers pass over as well
        return None


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip(one) for key, one in value.items() if key not in _VOLATILE}
    return [_strip(one) for one in value] if isinstance(value, list) else value
