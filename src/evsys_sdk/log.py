"""Logging: results go to stdout, log lines to stderr, secrets to neither; the root logger is never configured."""

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
    """Keeps secrets out of log lines, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        from .errors import clean  # here, because most commands log nothing

        return clean(redact_text(super().format(record)))


class _WithoutSecrets(logging.Filter):
    """Redacts the messages of a logger before any handler, also of a program that does not configure ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact_text(record.getMessage()), ()
        return True


_FILTER = _WithoutSecrets()


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: tests and notebooks replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if "\n" in line or not self.stream.isatty():
            return line
        import shutil  # here, because every command starts with this module, and few write such a line
        import textwrap

        width = shutil.get_terminal_size().columns
        return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def get_logger(name: str = ROOT) -> logging.Logger:
    """A logger below `evsys_sdk`."""
    logger = logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")
    logger.addFilter(_FILTER)  # the same filter is added once
    return logger


def configure_from_environment() -> None:
    """Log as `EVSYS_LOGGING_LEVEL` says, if it does; an unknown level is for the command line to refuse."""
    if level := os.environ.get(LEVEL_VARIABLE):
        with contextlib.suppress(ValueError):
            configure_logger(level)


def configure_logger(level: str | int = "WARNING") -> logging.Logger:
    """Send the SDK's log lines to stderr; calling it again only changes the level."""
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        handler = _ToStderr()
        handler.setFormatter(_Redacted(_FORMAT, datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False  # where the root logger prints as well, each line would come twice
    set_level(level)
    return logger


def set_level(level: str | int) -> None:
    """Change how much is logged, e.g. `set_level("DEBUG")`."""
    logging.getLogger(ROOT).setLevel(level.upper() if isinstance(level, str) else level)
