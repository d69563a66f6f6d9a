"""JSON and JSONL files, strictly: one object a line, UTF-8, and every failure names the file and the line.

Blank lines, CRLF, a byte-order mark and `.gz` are accepted; `NaN`, `Infinity`, lone surrogates and nesting beyond 200
levels are refused, because other readers handle them differently. As usual, the last of repeated keys counts, and a
number beyond the float range (1e400) becomes infinite, which cannot be written.

    for row in read_jsonl("data/train.jsonl"): ...
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, cast

from pydantic_core import from_json

from ..errors import DataError, closest, show
from ..files import atomic_write
from ..protocols import Row
from ..record.jsonable import dump_line

_BOM = b"\xef\xbb\xbf"
_NOT_A_NUMBER = re.compile(rb"-?(?:NaN|Infinity)\b")
_COLUMN = re.compile(r" at line (\d+) column (\d+)$")
_REMEDIES = {
    "recursion limit exceeded": "It is nested deeper than 200 levels; flatten it.",
    "number out of range": "An integer has more than 4300 digits; write it as text.",
    "hex escape": "A \\u escape is half of a surrogate pair; write the whole character.",
    "unicode": "The file is not UTF-8; convert it, for instance with: iconv -f ISO-8859-1 -t UTF-8.",
    "control character": "Escape control characters inside strings; a line break is written \\n.",
    "EOF": "It stops in the middle of a value; if this is the last line, the file was cut off: copy it again.",
}
"""Part of the parser's message -> remedy."""
_LINE_REMEDIES = {**_REMEDIES, "trailing characters": "Write exactly one JSON object on each line."}
_FILE_REMEDIES = {**_REMEDIES, "trailing characters": "For a file with one JSON object a line, use source_kind: jsonl."}


def read_jsonl(path: str | Path) -> Iterator[Row]:
    """The raw rows of a JSONL file, one at a time."""
    return map(itemgetter(1), iter_numbered_rows(path))


def iter_numbered_rows(
    path: str | Path, on_error: Callable[[int, DataError], None] | None = None
) -> Iterator[tuple[int, Row]]:
    """Line number and row. An invalid line is passed to `on_error`; without it, reading stops with the error."""
    number = 0
    try:
        with open_bytes(Path(path)) as file:
            for number, line in enumerate(file, 1):
                try:
                    # Share equal keys between rows; values differ.
                    row = from_json(line, allow_inf_nan=False, cache_strings="keys")
                except ValueError as error:
                    if not line.strip():  # checked only on errors: stripping every line costs time
                        continue
                    problem = _not_json(line, error, f"{path}:{number}", _LINE_REMEDIES)
                else:
                    if row.__class__ is dict:
                        yield number, row
                        continue
                    problem = not_an_object(row, f"{path}:{number}")
                if on_error is None:
                    raise problem
                on_error(number, problem)
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise cannot_read(path, error, after_line=number) from error


def read_json(path: str | Path) -> Any:
    """The value of a JSON file."""
    try:
        with open_bytes(Path(path)) as file:
            text = file.read()
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise cannot_read(path, error) from error
    return parse_json(text, str(path))


def parse_json(text: bytes, where: str) -> Any:
    """A JSON value, parsed as strictly as a file."""
    try:
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise _not_json(text, error, where, _FILE_REMEDIES) from None


def write_jsonl(path: Path, rows: Iterable[Row]) -> int:
    """Write rows atomically and return their number; a path ending in `.gz` is compressed."""
    count = 0
    with atomic_write(path) as file:
        # A fixed mtime and no name make equal rows equal bytes.
        out = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if path.suffix == ".gz" else file
        for count, row in enumerate(rows, 1):
            out.write(dump_line(row, f"{path}: row {count}"))
        if out is not file:
            out.close()  # writes the gzip trailer; the underlying file stays open
    return count


def cannot_read(path: str | Path, error: Exception, *, after_line: int = 0) -> DataError:
    """The error for an unreadable file, with a remedy."""
    place = f"{path} (after line {after_line})" if after_line else str(path)
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: there is no such file. {_nearby(Path(path))}")
    if isinstance(error, IsADirectoryError):
        return DataError(f"{path}: this is a folder. Name a file in it.")
    if isinstance(error, PermissionError):
        return DataError(f"{path}: reading it is not permitted. Change its permissions or name another file.")
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return DataError(f"{place}: the gzip data is damaged or cut off ({error}). Copy or compress the file again.")
    return DataError(f"{place}: it cannot be read: {error}. Check the path.")


@contextmanager
def open_bytes(path: Path) -> Generator[IO[bytes]]:
    """The file as bytes, without a byte-order mark."""
    if "\x00" in str(path):
        raise DataError(f"{show(str(path))}: this is not a usable path: it holds a NUL character.")
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        if file.peek(len(_BOM))[: len(_BOM)] == _BOM:
            file.read(len(_BOM))
        yield cast(IO[bytes], file)


def _not_json(text: bytes, error: ValueError, where: str, remedies: Mapping[str, str]) -> DataError:
    if not text.strip():
        return DataError(f"{where}: it is empty. Check that it is the file you meant.")
    message = str(error)
    position = _COLUMN.search(message)
    reason = _COLUMN.sub("", message)
    column = _offset(text, position) if position else 0
    # For `-Infinity`, the parser's position is after the sign.
    bad = _NOT_A_NUMBER.match(text, column - 1 if text[column - 1 : column] == b"-" else column)
    if bad:
        literal = bad.group().decode()
        return DataError(f"{where}: {literal} is not JSON. Write null or a finite number, or leave the row out.")
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return DataError(f"{where}: the file is UTF-16. Save it as UTF-8.")
    if b"\x00" in text[:64] and "control character" not in message:
        reason = "it holds NUL bytes, so it is binary or UTF-16"
    if remedies is _LINE_REMEDIES and text.strip() in (b"[", b"[{", b"{"):
        return DataError(f"{where}: an object must stand on one line. For one big JSON list, use source_kind: json.")
    remedy = next((remedy for part, remedy in remedies.items() if part in message), "Correct it.")
    around = show(text[max(0, column - 20) : column + 20].decode("utf-8", "replace").strip())
    return DataError(f"{where}: this is not JSON: {reason} at character {column + 1}: {around}. {remedy}")


def _offset(text: bytes, position: re.Match[str]) -> int:
    """The parser's position as an offset in `text`; lines and columns count from one, columns in bytes."""
    line, column = int(position[1]), int(position[2])
    start = 0
    for _ in range(line - 1):
        start = text.find(b"\n", start) + 1
    return max(0, min(start + column - 1, len(text)))


def not_an_object(value: Any, where: str) -> DataError:
    """The error for a JSON value that is not a row."""
    names: dict[type, str] = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    kind = names.get(value.__class__, "a number")
    hint = "For a file that is one JSON list, use source_kind: json" if kind == "a list" else "Write {...}"
    return DataError(f"{where}: a row must be a JSON object, but this is {kind} ({show(value)}). {hint}.")


def _nearby(path: Path) -> str:
    """The most similar existing file."""
    folder = path.absolute().parent
    if not folder.is_dir():
        return f"Its folder {folder} does not exist either; check the path."
    guess = closest(path.name, (entry.name for entry in folder.iterdir() if entry.is_file()))
    return f"Did you mean '{guess}'?" if guess else f"Check the path; the folder {folder} exists."
