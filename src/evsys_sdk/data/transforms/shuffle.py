"""`shuffle`: rows in a random order that the seed alone decides. The one built-in that holds all rows in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from ...protocols import Row
from ..transform import BaseTransform, TransformConfig


class ShuffleConfig(TransformConfig):
    """Which order."""

    seed: int = Field(default=0, ge=0)
    """Same seed, same rows: same order."""


class Shuffle(BaseTransform[ShuffleConfig]):
    """Puts all rows in a random, repeatable order."""

    name: ClassVar[str] = "shuffle"
    Config = ShuffleConfig

    def __call__(self, rows: Iterable[Row]) -> list[Row]:
        shuffled = list(rows)
        random.Random(self.cfg.seed).shuffle(shuffled)
        return shuffled
