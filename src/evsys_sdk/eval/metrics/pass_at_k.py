"""pass@k: does one of k attempts succeed?"""

from __future__ import annotations

from typing import ClassVar

from ..passing import PassMetric, chance_of_any


class PassAtK(PassMetric):
    """Chance that at least one of k samples passes, without bias; `pass@3` is short for k = 3."""

    name: ClassVar[str] = "pass_at_k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_any(n, passed, self.k)
