"""What the check before a run has found: problems that keep it from starting, and warnings that do not."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import EvsysError, Problem, problems_of

_RUN_INDEX = re.compile(r"^runs\[\d+\]")


@dataclass(slots=True)
class CheckReport:
    """Everything found, each thing once, in the order it was found."""

    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[Problem] = field(default_factory=list[Problem])
    _seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def add(self, problems: Iterable[Problem]) -> None:
        """Take note of problems; what is wrong at the same place of many arms is one problem."""
        self._note(problems, self.problems)

    def warn(self, problems: Iterable[Problem]) -> None:
        """Take note of what does not keep it from running, but from meaning what was meant."""
        self._note(problems, self.warnings)

    def _note(self, problems: Iterable[Problem], noted: list[Problem]) -> None:
        for problem in problems:
            key = (_RUN_INDEX.sub("runs", problem.path), problem.message)
            if key not in self._seen:
                self._seen.add(key)
                noted.append(problem)

    @contextmanager
    def at(self, path: str, remedy: str = "") -> Generator[None]:
        """Whatever is refused inside the block is a problem of this place."""
        try:
            yield
        except EvsysError as error:
            self.add(problems_of(error, path, remedy))
