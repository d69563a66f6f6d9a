"""In which order examples are visited: a function of seed and step, so that a resumed run sees the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Shuffled epochs cut into batches; the last batch of an epoch may be smaller."""

    n_examples: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.n_examples // self.batch_size)

    def indices(self, step: int) -> list[int]:
        """Which examples the batch of `step` holds."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return [
            int(index) for index in _epoch_order(self.seed, epoch, self.n_examples)[start : start + self.batch_size]
        ]

    def epoch(self, step: int) -> float:
        """How often the data has been seen after `step`, as a fraction."""
        return (step + 1) / self.steps_per_epoch


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, n_examples: int) -> np.ndarray:
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(n_examples)
