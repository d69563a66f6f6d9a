"""`split`: one part of a train/val/test split, which depends on a row's content alone, never on its position.

    - {kind: split, params: {part: train, key: user_id}}

Rows with the same key land in the same part, so that a user (or a question asked twice) cannot be in two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...protocols import Row
from ..digest import digest, unit_interval
from ..fields import required
from ..transform import RowTransform, TransformConfig


class SplitConfig(TransformConfig):
    """Which part, and how large the parts are."""

    part: Literal["train", "val", "test"] = "train"
    """The part to keep."""
    train: float = Field(default=0.8, ge=0, le=1)
    """Share of the train part."""
    val: float = Field(default=0.1, ge=0, le=1)
    """Share of the val part."""
    test: float = Field(default=0.1, ge=0, le=1)
    """Share of the test part."""
    key: str | None = Field(default=None, min_length=1)
    """Field of the row or its metadata that decides; by default the whole row, so split before changing rows."""
    salt: str = ""
    """Another salt gives another split of the same shares."""

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        total = self.train + self.val + self.test
        if not math.isclose(total, 1, abs_tol=1e-9):
            raise ValueError(f"train, val and test must add up to 1, but they add up to {total:g}. Change one of them.")
        if getattr(self, self.part) == 0:
            raise ValueError(f"the part to keep, '{self.part}', has a share of 0. Give it one.")
        return self


class Split(RowTransform[SplitConfig]):
    """Keeps one part of a train/val/test split that depends on content alone."""

    name: ClassVar[str] = "split"
    Config = SplitConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        cfg = self.cfg
        self._read = required(cfg.key) if cfg.key is not None else _whole_row
        self._salt = digest(cfg.salt) if cfg.salt else b""
        edges = {"train": (0.0, cfg.train), "val": (cfg.train, cfg.train + cfg.val), "test": (cfg.train + cfg.val, 1.0)}
        self._low, self._high = edges[cfg.part]
        if (cfg.part == "train" and not cfg.val + cfg.test) or (cfg.part == "val" and not cfg.test):
            self._high = 1.0  # shares like 0.7 and 0.3 may add up to a little less than 1

    def row(self, row: Row) -> Row | None:
        """The row, if it is in the part."""
        return row if self._low <= unit_interval(digest(self._read(row), self._salt)) < self._high else None


def _whole_row(row: Mapping[str, Any]) -> Any:
    return row
