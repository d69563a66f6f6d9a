"""Collects what is wrong in one document, so that all of it can be reported at once."""

from __future__ import annotations

from typing import Any, Final, NoReturn, Protocol

from ...errors import MISSING, ConfigError, Problem

_MAX_PROBLEMS: Final = 100
"""Where reading gives up: a file with more is not a config with mistakes but something else."""


def excerpt(text: str, length: int = 80) -> str:
    """`text` cut to what a sentence can hold; a config may be one line of five million characters."""
    return text if len(text) <= length else f"{text[:length]}…"


class Place(Protocol):
    """Something with a line and a column that count from 0: a parser's mark or a node."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class Report:
    """The problems found so far in one file."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._problems: list[Problem] = []

    def add(self, message: str, at: Place, *, value: Any = MISSING, hint: str = "") -> None:
        """Note a problem and go on reading."""
        here = Problem(message, value=value, hint=hint, line=at.line + 1, column=at.column + 1)
        if len(self._problems) + 1 >= _MAX_PROBLEMS:
            self.stop(here)
        self._problems.append(here.located(file=self._file))

    def stop(self, problem: Problem) -> NoReturn:
        """Raise everything found so far, `problem` last."""
        raise ConfigError([*self._problems, problem.located(file=self._file)]) from None

    def fail(self, message: str, at: Place, *, hint: str = "") -> NoReturn:
        """Raise everything found so far, this problem last, because reading cannot go on."""
        self.stop(Problem(message, hint=hint, line=at.line + 1, column=at.column + 1))

    def raise_if_any(self) -> None:
        """Raise everything found, if anything was."""
        if self._problems:
            raise ConfigError(self._problems)
