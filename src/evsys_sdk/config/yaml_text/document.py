"""The front of the YAML layer: from a file to a parsed document that knows where each value was written.

Size, kind of file, encoding and characters are all checked before the parser runs.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError, Problem, closest
from .compose import Node, compose

MAX_BYTES = 5_000_000
"""The largest YAML file read by default."""

NOT_IN_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that YAML forbids, or (U+0085, U+2028, U+2029) that break a line in YAML 1.1 only."""

_UTF_16_OR_32 = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_LONGEST_LISTING = 1_000


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file; everything that is not one is refused before it is opened."""
    file = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            hint = "Give the path of a YAML file inside it."
            raise ConfigError(Problem("this is a directory, not a file", hint=hint, file=file))
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer, perhaps for ever
            hint = "Write the YAML to an ordinary file and give its path."
            raise ConfigError(Problem("this is a pipe, socket or device, not a regular file", hint=hint, file=file))
        _check_size(status.st_size, max_bytes, file)
        with path.open("rb") as opened:
            content = opened.read(max_bytes + 1)  # the file may have grown, or may not tell its size (as in /proc)
    except FileNotFoundError:
        raise ConfigError(Problem("there is no such file", hint=_look_nearby(path), file=file)) from None
    except PermissionError:
        hint = f"Make it readable, e.g. chmod u+r {path.name}"
        raise ConfigError(Problem("this file cannot be read: permission denied", hint=hint, file=file)) from None
    except OSError as error:
        raise ConfigError(Problem(f"this file cannot be read: {error.strerror or error}", file=file)) from None
    except (ValueError, UnicodeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(Problem(f"this is not a usable path: {error}", value=file)) from None
    _check_size(len(content), max_bytes, file)
    return content


def decode(source: str | bytes, file: str | None) -> str:
    """`source` as text without a byte order mark, free of characters that YAML text cannot hold."""
    text = source if isinstance(source, str) else _decode_utf8(source, file)
    text = text.removeprefix("\ufeff")
    bad = NOT_IN_YAML.search(text)
    if bad is not None:
        line, column = place_of(text, bad.start())
        message, hint = _describe_character(bad.group())
        raise ConfigError(Problem(message, hint=hint, file=file, line=line, column=column))
    return text


def place_of(text: str, index: int) -> tuple[int, int]:
    """Line and column, both from 1, of a character of `text`."""
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _check_size(size: int, max_bytes: int, file: str) -> None:
    if size > max_bytes:
        message = f"this file has {size / 1e6:.1f} MB; a YAML file may have at most {max_bytes / 1e6:g} MB"
        hint = "Keep rows in a data file (for instance JSONL) and name that file in the YAML."
        raise ConfigError(Problem(message, hint=hint, file=file))


def _look_nearby(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"The folder '{folder}' does not exist either."
    # Only so many of them: a folder may hold millions, and this is for one word in an error message.
    siblings = [entry.name for entry, _ in zip(folder.iterdir(), range(_LONGEST_LISTING), strict=False)]
    guess = closest(path.name, siblings)
    return f"Did you mean '{folder / guess}'?" if guess else "Check the path."


def _decode_utf8(source: bytes, file: str | None) -> str:
    if source.startswith(_UTF_16_OR_32):
        raise ConfigError(Problem("this text is encoded as UTF-16 or UTF-32", hint="Save it as UTF-8.", file=file))
    try:
        return source.decode("utf-8")
    except UnicodeDecodeError as error:
        before = source[: error.start].decode("utf-8")
        line, column = place_of(before, len(before))
        message = f"this text is not UTF-8: byte 0x{source[error.start]:02x} at offset {error.start} cannot be decoded"
        hint = "Save the file as UTF-8."
        raise ConfigError(Problem(message, hint=hint, file=file, line=line, column=column)) from None


def _describe_character(character: str) -> tuple[str, str]:
    code = ord(character)
    name = f"character U+{code:04X}"
    escape = f'"\\x{code:02x}"' if code < 0x100 else f'"\\u{code:04x}"'
    in_quotes = f"write it as {escape} inside double quotes"
    if code == 0:
        return f"{name} (NUL) cannot stand in YAML text", "If the file is UTF-16 or binary, save it as UTF-8 text."
    if 0xD800 <= code <= 0xDFFF:
        return f"{name} is half of a surrogate pair, not a character", "Remove it."
    if code == 0xFEFF:
        return f"{name} (an invisible byte order mark) stands inside the text", f"Remove it, or {in_quotes}."
    if code in (0x85, 0x2028, 0x2029):
        remedy = f"Replace it by an ordinary line break, or {in_quotes}."
        return f"{name} (an invisible line separator) means different things to different YAML readers", remedy
    return f"control {name} cannot stand in YAML text", f"Remove it, or {in_quotes}."


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its data, and the line and column of every value in it."""

    data: Any
    """Plain dict, list, str, int, float, bool or None; nothing in it is shared, even where aliases were used."""
    file: str | None
    _root: Node = field(repr=False, compare=False)

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int] | None:
        """Line and column (from 1) of the value at `path`, or of its key where it is a mapping entry.

        A path that leads nowhere gives the place of the nearest parent that exists. What came in through an alias or
        a merge is found where it was written.
        """
        node = place = self._root
        for step in path:
            if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
                place, node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and 0 <= step < len(node.value):
                place = node = node.value[step]
            else:
                break
        return place.line + 1, place.column + 1


def read_yaml(text: str | bytes, *, file: str | None = None) -> Document:
    """Parse one YAML document; `file` is only the name that errors show. The top level may be any value."""
    root = compose(decode(text, file), file)
    return Document(root.to_data(), file, root)


def read_yaml_file(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Parse the YAML file at `path`, which must be a regular file of at most `max_bytes`."""
    return read_yaml(read_bytes(path, max_bytes), file=str(path))
