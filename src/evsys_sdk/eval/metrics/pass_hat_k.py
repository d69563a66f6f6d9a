"""pass^k: do all of k attempts succeed?"""

from __future__ import annotations

from typing import ClassVar

from ..passing import PassMetric, chance_of_all


class PassHatK(PassMetric):
    """Chance that all of k samples pass, without bias; `pass^3` is short for k = 3."""

    name: ClassVar[str] = "pass^k"

    def chance(self, n: int, passed: int) -> float:
        return chance_of_all(n, passed, self.k)
