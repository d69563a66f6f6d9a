"""`keep_last_turns`: shorten long conversations from the front."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ...protocols import Row
from ..chat import messages_of
from ..transform import RowTransform, TransformConfig


class KeepLastTurnsConfig(TransformConfig):
    """How much stays."""

    n: int = Field(default=1, ge=1)
    """How many turns; a turn is a user's message and all that follows it up to the next one, tool calls included."""


class KeepLastTurns(RowTransform[KeepLastTurnsConfig]):
    """Keeps the last turns of conversations, and their system message."""

    name: ClassVar[str] = "keep_last_turns"
    Config = KeepLastTurnsConfig

    def row(self, row: Row) -> Row:
        """The row with fewer messages."""
        messages = messages_of(row)
        starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
        if len(starts) <= self.cfg.n:
            return row
        first = starts[-self.cfg.n]
        system = [message for message in messages[:first] if message.get("role") in ("system", "developer")]
        return {**row, "messages": [*system, *messages[first:]]}
