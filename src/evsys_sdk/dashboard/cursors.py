"""Where a page ends, as text that clients hand back unread."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from .source import BadQuery


def write_cursor(*place: Any) -> str:
    """A cursor that stands for a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The place a cursor stands for, if it has the given types; BadQuery otherwise."""
    try:
        place: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        place = None
    found = cast("list[Any]", place) if isinstance(place, list) else []
    if len(found) != len(kinds) or not all(map(_fits, found, kinds)):
        raise BadQuery("this cursor was not given out by this list. Begin again without one.")
    return found


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > 1 << 53):
        return False
    return isinstance(value, kind) and not (isinstance(value, str) and "\x00" in value)
