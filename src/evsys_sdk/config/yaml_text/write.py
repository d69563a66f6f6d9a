"""Plain data to YAML text that reads back as the same data, here and with any YAML 1.1 or 1.2 reader.

Block style, insertion order, no aliases, no folding. Text is left unquoted only where no reader could take it for
anything else; several lines become a `|` block unless that would hide something, such as spaces at the end of a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from ...errors import ConfigError, Problem
from .compose import MAX_DEPTH
from .scalars import MAX_DIGITS

_INDENT: Final = "  "
_LONGEST_SIMPLE_KEY: Final = 1_000
"""Longer keys are written as `? key`, because the ordinary form allows 1,024 characters."""

_INVISIBLE = "\x7f-\xa0\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\uffff"
"""Inside a character class: what a reader of the file could not see, or YAML could not hold."""
_NEEDS_ESCAPE = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_TO_ESCAPE = re.compile(f'["\\\\\x00-\x1f{_INVISIBLE}]')
_NOT_IN_BLOCK_TEXT = re.compile(f"^[ \t\n]|[ \t](?:\n|$)|[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

_UNQUOTED = re.compile(r"(?:[^\W\d]|/|\.{1,2}/)(?:.*\S)?")
_UNSAFE_UNQUOTED = re.compile(r": |:$| #")
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that a YAML 1.1 or 1.2 reader takes for a boolean or null, in any capitalisation."""


def write_yaml(value: Any) -> str:
    """`value` as YAML text; tuples are written as lists, and anything that is not plain data is refused."""
    inline = _inline(value, 0, "")
    return f"{inline}\n" if inline is not None else "\n".join(_block(value, 0, "")) + "\n"


def _block(value: Any, depth: int, path: str) -> list[str]:
    """The lines of a list or mapping that is not empty and has `depth` others around it."""
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            lines += _entry(key, item, depth, path)
        return lines
    pad = _INDENT * depth
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        inline = _inline(item, depth + 1, here)
        if inline is None:
            first, *others = _block(item, depth + 1, here)
            lines += [f"{pad}- {first.removeprefix(pad + _INDENT)}", *others]
        else:
            lines.append(f"{pad}- {inline}")
    return lines


def _entry(key: Any, item: Any, depth: int, path: str) -> list[str]:
    here = f"{path}.{key}" if path else str(key)
    if not isinstance(key, str):
        _refuse("a key must be text", here, "Use a string as the key.", value=key)
    pad = _INDENT * depth
    name = _text(str.__str__(key), here)  # of a subclass such as an enum, what it is and not what it prints
    head = f"{pad}{name}:" if len(name) <= _LONGEST_SIMPLE_KEY else f"{pad}? {name}\n{pad}:"
    inline = _inline(item, depth + 1, here)
    if inline is None:
        return [head, *_block(item, depth + 1, here)]
    return [f"{head} {inline}"]


def _inline(value: Any, depth: int, path: str) -> str | None:
    """What follows `key:` or `-`; None for a list or mapping that needs lines of its own."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = str.__str__(value)
        if "\n" in text and not _NOT_IN_BLOCK_TEXT.search(text):
            return _block_text(text, _INDENT * max(depth, 1))
        return _text(text, path)
    if isinstance(value, int):
        return _integer(value, path)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            message = f"lists and mappings are nested more than {MAX_DEPTH} levels deep, or contain themselves"
            _refuse(message, path, "Flatten the data.")
        return None if value else "{}" if isinstance(value, Mapping) else "[]"
    hint = "Convert it first: YAML holds text, numbers, true/false, null, lists and mappings."
    _refuse(f"a value of type {type(value).__name__} cannot be written as YAML", path, hint, value=value)


def _text(text: str, path: str) -> str:
    """Text on one line: unquoted where that is unmistakable, otherwise in the quotes that need fewer escapes."""
    if _SURROGATE.search(text):
        _refuse("half of a surrogate pair cannot be written as YAML", path, "Remove it from the text.", value=text)
    if _NEEDS_ESCAPE.search(text):
        return f'"{_TO_ESCAPE.sub(_escape, text)}"'
    if _UNQUOTED.fullmatch(text) and not _UNSAFE_UNQUOTED.search(text) and text.lower() not in _NOT_TEXT:
        return text
    if '"' in text or "\\" in text:
        return "'" + text.replace("'", "''") + "'"
    return f'"{text}"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}")


def _block_text(text: str, pad: str) -> str:
    stripped = text.rstrip("\n")
    ending = text[len(stripped) :]
    header = "|-" if not ending else "|" if ending == "\n" else "|+"
    lines = f"{stripped}{ending[1:]}".split("\n")
    return "\n".join([header, *(pad + line if line else "" for line in lines)])


def _integer(value: int, path: str) -> str:
    # In bits, of which a digit takes more than three: to count the digits would take quadratic time.
    if value.bit_length() > 3 * MAX_DIGITS:
        _refuse(f"an integer of {value.bit_length()} bits is too long for YAML", path, "Write it as text.")
    return int.__repr__(value)


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    digits = float.__repr__(value)
    # YAML 1.1 wants a point in every float, so 1e-05 becomes 1.0e-05
    return digits if "." in digits else digits.replace("e", ".0e")


def _refuse(message: str, path: str, hint: str, **value: Any) -> NoReturn:
    raise ConfigError(Problem(message, path=path, hint=hint, **value))
