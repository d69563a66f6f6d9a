"""Logging to stderr without secrets; the root logger is never configured."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TextIO

from .redact import redact_text

ROOT = "evsys_sdk"
LEVEL_VARIABLE = "EVSYS_LOGGING_LEVEL"
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class _Redacted(logging.Formatter):
    """Redacts log lines with their tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        from .errors import clean  # here, because most commands log nothing

        return clean(redact_text(super().format(record)))


class _WithoutSecrets(logging.Filter):
    """Redacts messages before any handler, also in programs with other handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact_text(record.getMessage()), ()
        return True


_FILTER = _WithoutSecrets()


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which tests and notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if "\n" in line or not self.stream.isatty():
            return line
        import shutil  # here, because every command imports this module, and few need it
        import textwrap

        width = shutil.get_terminal_size().columns
        return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def get_logger(name: str = ROOT) -> logging.Logger:
    """A logger below `evsys_sdk`."""
    logger = logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")
    logger.addFilter(_FILTER)  # adding the same filter twice has no effect
    return logger


def configure_from_environment() -> None:
    """Set the level of `EVSYS_LOGGING_LEVEL`; unknown levels are ignored here and refused by the command line."""
    if level := os.environ.get(LEVEL_VARIABLE):
        with contextlib.suppress(ValueError):
            configure_logger(level)


def configure_logger(level: str | int = "WARNING") -> logging.Logger:
    """Send the SDK's log lines to stderr; a second call only changes the level."""
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        handler = _ToStderr()
        handler.setFormatter(_Redacted(_FORMAT, datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False  # otherwise handlers of the root logger print each line again
    set_level(level)
    return logger


def set_level(level: str | int) -> None:
    """Set the log level, e.g. `set_level("DEBUG")`."""
    logging.getLogger(ROOT).setLevel(level.upper() if isinstance(level, str) else level)
