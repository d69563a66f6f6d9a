"""The interface of a log of served conversations and feedback."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """A conversation and its continuation."""

    id: str
    model: str
    """The requested model name."""
    messages: list[dict[str, Any]]
    metadata: dict[str, Any]
    response: dict[str, Any]
    """The response as a chat completion, for every API."""
    time: float = field(default_factory=time.time)


class TraceLog(Protocol):
    """Stores conversations."""

    def keep(self, answer: ServedAnswer, size: int) -> None:
        """Store a response to a request of `size` bytes."""
        ...

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Store feedback about an answer and return its status; None for an unknown answer id.

        May block, so it is called on a thread.
        """
        ...
