"""Who keeps what a server is asked and answers: what the server tells it, and what it takes on its behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class TraceLog(Protocol):
    """Keeps what is said."""

    def wrap(self, app: Any) -> Any:
        """The application, listened to."""
        ...

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keep what somebody thought of an answer, and say what became of it; None where no answer has that id.

        Takes its time, so it is asked on a thread.
        """
        ...
