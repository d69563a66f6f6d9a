"""The requests of one model in the order of their numbers, each applied once.

Parts of one batch arrive in any order, and a request whose answer was lost arrives twice. So each carries a number,
counted by the client from 1: it waits until all before it have started, and a number that was seen is not taken again.
A refused request uses up its number, because the client has counted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .answer import Refusal

_FARTHEST: Final = 10_000
"""No client has that many requests under way; a number beyond is a mistake, and waiting for it would be endless."""
_REMEMBERED: Final = 1000
"""Refusals kept to be repeated to a client that asks again."""


@dataclass(slots=True)
class Turns:
    """Who is next."""

    next: int = 1
    _held: dict[int, Callable[[], None] | None] = field(default_factory=dict[int, Callable[[], None] | None])
    _refused: dict[int, Refusal] = field(default_factory=dict[int, Refusal])
    _missing_since: float | None = None

    def seen(self, number: int) -> bool:
        """Whether a request of this number was taken already; raises what it was or must be refused with."""
        if number > self.next + _FARTHEST:
            raise Refusal(400, f"seq_id is {number}, but the next request of this model is number {self.next}.")
        if number in self._refused:
            raise self._refused[number]
        return number < self.next or number in self._held

    @property
    def held(self) -> int:
        """How many wait for one before them."""
        return len(self._held)

    def take(self, number: int, start: Callable[[], None]) -> None:
        """Call `start` when it is this number's turn, which may be now."""
        self._held[number] = start
        self._advance()

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Use up a number without doing anything."""
        self._refused[number] = refusal
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]
        if number >= self.next:
            self._held[number] = None
            self._advance()

    def overdue(self, after_s: float) -> list[int]:
        """Numbers that have not arrived for so long that those behind them must be given up, which happens here."""
        if self._missing_since is None or time.monotonic() - self._missing_since < after_s:
            return []
        last = max(self._held)
        missing = [number for number in range(self.next, last + 1) if number not in self._held]
        for number in missing:
            self._refused[number] = Refusal(410, f"request {number} came too late: later ones were given up meanwhile.")
        self._held.clear()
        self.next, self._missing_since = last + 1, None
        return missing

    def _advance(self) -> None:
        while self.next in self._held:
            start = self._held.pop(self.next)
            self.next += 1
            self._missing_since = None
            if start is not None:
                start()
        if self._held and self._missing_since is None:
            self._missing_since = time.monotonic()
