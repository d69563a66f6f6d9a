"""JSON inside a completion: alone, in a code block, or somewhere between words."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ...errors import MISSING
from .answer import code_blocks

_OPENING = re.compile(r"[{\[]")
_MOST_ATTEMPTS = 50
"""How many brackets are tried as a beginning; a text of nothing but brackets must not take for ever."""


def strict_loads(text: str) -> Any:
    """The value of a JSON text; `ValueError` for anything that is none, `NaN` and bottomless nesting included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_json(text: str) -> Any:
    """The JSON value of a text: all of it, else its last code block that is one, else the first object or list in it.

    `MISSING` when there is none.
    """
    for candidate in (text, *reversed(code_blocks(text))):
        try:
            return strict_loads(candidate)
        except ValueError:
            continue
    return _first_embedded(text)


def _first_embedded(text: str) -> Any:
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for attempt, opening in enumerate(_OPENING.finditer(text)):
        if attempt == _MOST_ATTEMPTS:
            break
        try:
            return decoder.raw_decode(text, opening.start())[0]
        except (ValueError, RecursionError):
            continue
    return MISSING


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
