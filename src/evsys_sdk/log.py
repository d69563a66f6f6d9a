"""Logging: results go to stdout, log lines to stderr, secrets to neither; the root logger is never configured."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from .redact import redact_text

ROOT = "evsys_sdk"
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class _Redacted(logging.Formatter):
    """Keeps secrets out of log lines, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


class RedactedStream:
    """An output stream that passes on what is written, without its secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def unredacted(self) -> TextIO:
        return self._stream

    def write(self, text: str) -> int:
        self._stream.write(redact_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: tests and notebooks replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def get_logger(name: str = ROOT) -> logging.Logger:
    """A logger below `evsys_sdk`."""
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def configure_logger(level: str | int = "WARNING") -> logging.Logger:
    """Send the SDK's log lines to stderr; calling it again only changes the level."""
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        handler = _ToStderr()
        handler.setFormatter(_Redacted(_FORMAT, datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False
    set_level(level)
    return logger


def redact_output() -> tuple[TextIO, TextIO]:
    """Keep secrets out of everything this program prints; returns the streams as they were."""
    before = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (
        stream if isinstance(stream, RedactedStream) else cast(TextIO, RedactedStream(stream)) for stream in before
    )
    return before


def hand_over(secret_text: str) -> None:
    """Print a key that was made for the person who asked for it: the one thing that may pass unredacted."""
    stream = sys.stdout
    if isinstance(stream, RedactedStream):
        stream = stream.unredacted
    stream.write(secret_text + "\n")
    stream.flush()


def set_level(level: str | int) -> None:
    """Change how much is logged, e.g. `set_level("DEBUG")`."""
    logging.getLogger(ROOT).setLevel(level.upper() if isinstance(level, str) else level)
