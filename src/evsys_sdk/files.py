"""Write files atomically: a crash leaves the old content or the new."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from .redact import is_suspicious, redact, redact_text


@contextlib.contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Generator[IO[Any]]:
    """Open a temporary file next to `path`; it replaces `path` only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding, errors = (None, None) if "b" in mode else ("utf-8", "backslashreplace")  # lone surrogates
    # A random name and mode `x`, so that concurrent writers never share a file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open(mode.replace("w", "x"), encoding=encoding, errors=errors) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, verbatim: bool = False) -> None:
    """Replace `path` by `text` atomically and redacted; `verbatim` writes files of the user unredacted."""
    with atomic_write(path, "w") as file:
        file.write(text if verbatim else redact_text(text))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON, atomically and redacted."""
    if is_suspicious(json.dumps(value, ensure_ascii=False)):  # on one line, which is ten times as fast
        value = redact(value)
    write_text(path, f"{json.dumps(value, indent=2, ensure_ascii=False)}\n", verbatim=True)
