"""Fields that the schema accepts and this version does not act on: refused in one sentence, never ignored."""

from __future__ import annotations

from ..errors import Problem
from .experiment import ExperimentConfig


def unavailable(config: ExperimentConfig) -> list[Problem]:
    """Every field that asks for something this version cannot do."""
    asked: dict[str, tuple[bool, str]] = {}
    hint = "Remove the field to run the experiment now."
    return [
        Problem(f"this version does not support {what} yet", path=path, hint=hint)
        for path, (wanted, what) in asked.items()
        if wanted
    ]
