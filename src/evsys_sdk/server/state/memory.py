"""How many bytes of requests a server holds at once: many long requests together must not fill its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..answer import Refusal


@dataclass(slots=True)
class Memory:
    """Room for requests."""

    limit: int
    """Bytes in all."""
    used: int = 0

    def check(self, size: int) -> None:
        """Refuse `size` bytes that do not fit."""
        if self.used + size > self.limit:
            raise Refusal(
                429,
                f"requests of {self.limit / 1e6:g} MB are waiting here already. Try again, or raise --max-request-mb.",
                retry_after_s=1,
            )

    def hold(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size

    def reading(self, most: int, hint: str) -> Reading:
        """Room for one request as long as it is read and answered; `hint` is what to do about one that is longer."""
        return Reading(self, most, hint)


@dataclass(slots=True)
class Reading:
    """One request."""

    memory: Memory
    most: int
    hint: str
    size: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.memory.give_back(self.size)

    def check_announced(self, size: int) -> None:
        """Refuse what says that it is too long. Nothing is kept for it: it may never come."""
        if size > self.most:
            raise Refusal(413, f"the request is longer than {self.most / 1e6:g} MB. {self.hint}")

    def grow(self, size: int) -> None:
        """See to it that the `size` bytes that have come fit."""
        self.check_announced(size)
        if size > self.size:
            self.memory.check(size - self.size)
            self.memory.hold(size - self.size)
            self.size = size
