"""`sample`: a random part of the rows, in their order.

Samples nest: with one seed, a smaller sample is part of a larger one, so that a curve over sizes adds rows only.
Every row draws a number from the seed and its position; the rows with the smallest numbers stay.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from typing import ClassVar, Self

from pydantic import Field, model_validator

from ...errors import DataError
from ...protocols import Row
from ..transform import BaseTransform, TransformConfig


class SampleConfig(TransformConfig):
    """How many rows, and which."""

    n: int | None = Field(default=None, ge=1)
    """Exactly this many rows, held in memory until all have been seen."""
    fraction: float | None = Field(default=None, gt=0, le=1)
    """About this share of the rows, decided for each as it passes."""
    seed: int = Field(default=0, ge=0)
    """Same seed, same rows: same sample."""
    allow_fewer: bool = False
    """Whether it is fine to have fewer than n rows to choose from."""

    @model_validator(mode="after")
    def _has_one_size(self) -> Self:
        if (self.n is None) is (self.fraction is None):
            raise ValueError("a sample has either n (how many) or fraction (what share). Set one of them.")
        return self


class Sample(BaseTransform[SampleConfig]):
    """Keeps a random part of the rows: a number of them or a share."""

    name: ClassVar[str] = "sample"
    Config = SampleConfig

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        draw = random.Random(self.cfg.seed).random
        if self.cfg.fraction is not None:
            return (row for row in rows if draw() < self.cfg.fraction)
        return self._exactly(rows)

    def _exactly(self, rows: Iterable[Row]) -> Iterator[Row]:
        n = self.cfg.n or 0
        draw = random.Random(self.cfg.seed).random
        chosen: list[tuple[float, int, Row]] = []  # a heap with the largest number on top, hence the minus
        for position, row in enumerate(rows):
            number = -draw()
            if len(chosen) < n:
                heapq.heappush(chosen, (number, -position, row))
            elif number > chosen[0][0]:
                heapq.heapreplace(chosen, (number, -position, row))
        if len(chosen) < n and not self.cfg.allow_fewer:
            raise DataError(
                f"a sample of {n} was asked for, but there are only {len(chosen)} rows. Lower n or set allow_fewer."
            )
        chosen.sort(key=lambda item: -item[1])
        yield from (row for _, _, row in chosen)
