"""The share of predictions that equal their target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ExactMatch:
    """Share of predictions equal to their target, surrounding white space aside."""

    name: ClassVar[str] = "exact_match"

    def compute(self, *, predictions: Sequence[str], targets: Sequence[str]) -> float:
        """Between 0 and 1; without predictions there is nothing to report, which is an error of the caller."""
        if not predictions or len(predictions) != len(targets):
            raise ValueError(
                f"exact_match needs as many predictions as targets, got {len(predictions)} and {len(targets)}."
            )
        hits = sum(
            prediction.strip() == target.strip() for prediction, target in zip(predictions, targets, strict=True)
        )
        return hits / len(targets)
