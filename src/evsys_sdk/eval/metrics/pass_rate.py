"""The share of samples that pass."""

from __future__ import annotations

from typing import ClassVar

from ..passing import PassMetric, PassParams


class PassRate(PassMetric):
    """Share of samples that pass: a reward of at least 1. The same as pass@1."""

    name: ClassVar[str] = "pass_rate"
    Config = PassParams

    def chance(self, n: int, passed: int) -> float:
        return passed / n
