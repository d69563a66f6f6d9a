"""Who keeps what a server is asked and answers: what the server tells it, and what it takes on its behalf."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """What other weights would have said."""

    id: str
    """Of the answer that was given."""
    candidate: str
    """Whose answer this is."""
    messages: list[dict[str, Any]]
    """What was asked."""
    response: dict[str, Any]
    """The answer as a chat completion; empty where there was none."""
    failed: str = ""
    """Why there was none."""
    time: float = field(default_factory=time.time)


class TraceLog(Protocol):
    """Keeps what is said."""

    def wrap(self, app: Any) -> Any:
        """The application, listened to."""
        ...

    def keep_shadow(self, answer: ShadowAnswer) -> None:
        """Keep an answer that no one saw, or that there was none."""
        ...

    def count_dropped(self, candidate: str) -> None:
        """Note a request that a shadow did not get round to."""
        ...

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keep what somebody thought of an answer, and say what became of it; None where no answer has that id.

        Takes its time, so it is asked on a thread.
        """
        ...
