"""Who keeps what a server is asked and answers: what the server tells it, and what it takes on its behalf."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """A conversation and how it was continued."""

    id: str
    model: str
    """The name that was asked for."""
    messages: list[dict[str, Any]]
    metadata: dict[str, Any]
    response: dict[str, Any]
    """The answer as a chat completion, whatever API it was asked by."""
    time: float = field(default_factory=time.time)


class TraceLog(Protocol):
    """Keeps conversations."""

    def keep(self, answer: ServedAnswer, size: int) -> None:
        """Keep an answer to a request of `size` bytes."""
        ...

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keep what somebody thought of an answer, and say what became of it; None where no answer has that id.

        Takes its time, so it is asked on a thread.
        """
        ...
