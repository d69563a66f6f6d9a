"""What one rule saw, and what it says about learning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """What one rule saw."""

    rule: str
    votes: bool | None
    """For learning, against it, or neither."""
    text: str
    value: float = 0.0
