"""The report of the check before a run: problems, which prevent the start, and warnings."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import EvsysError, Problem, problems_of

_RUN_INDEX = re.compile(r"^runs\[\d+\]")


@dataclass(slots=True)
class CheckReport:
    """Problems and warnings in the order they were found, without duplicates."""

    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[Problem] = field(default_factory=list[Problem])
    _seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems; the same problem at the same place of several arms counts once."""
        self._note(problems, self.problems)

    def warn(self, problems: Iterable[Problem]) -> None:
        """Add warnings, without duplicates."""
        self._note(problems, self.warnings)

    def _note(self, problems: Iterable[Problem], noted: list[Problem]) -> None:
        for problem in problems:
            key = (_RUN_INDEX.sub("runs", problem.path), problem.message)
            if key not in self._seen:
                self._seen.add(key)
                noted.append(problem)

    @contextmanager
    def at(self, path: str, remedy: str = "") -> Generator[None]:
        """Turn an `EvsysError` of the block into problems at this place."""
        try:
            yield
        except EvsysError as error:
            self.add(problems_of(error, path, remedy))
