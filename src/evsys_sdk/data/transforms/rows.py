"""Transforms that select and order rows: `identity`, `shuffle`, `sample`, `split`, `dedupe`.

They depend only on the seed or the content of rows. Only `shuffle` and a `sample` of n rows hold rows in memory.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...errors import DataError
from ...protocols import Row
from ..digest import digest, unit_interval
from ..fields import Reader, require
from ..shapes import is_list, is_object
from ..transform import BaseTransform, NoParams, RowFunction, RowTransform, TransformConfig


class IdentityRows(RowTransform[NoParams]):
    """Passes every row on unchanged.

    For example as the baseline arm of an ablation.
    """

    name: ClassVar[str] = "identity"
    Config = NoParams

    def row(self, row: Row) -> Row:
        """The row itself."""
        return row


class ShuffleConfig(TransformConfig):
    """Order of the rows."""

    seed: int = Field(default=0, ge=0)
    """The same seed, rows and Python version give the same order."""


class Shuffle(BaseTransform[ShuffleConfig]):
    """Shuffles all rows reproducibly.

    The one built-in that holds all rows in memory.
    """

    name: ClassVar[str] = "shuffle"
    Config = ShuffleConfig

    def __call__(self, rows: Iterable[Row]) -> list[Row]:
        shuffled = list(rows)
        random.Random(self.cfg.seed).shuffle(shuffled)
        return shuffled


class SampleConfig(TransformConfig):
    """Size and seed of a sample."""

    n: int | None = Field(default=None, ge=1)
    """Exactly this many rows, held in memory until all are read."""
    fraction: float | None = Field(default=None, gt=0, le=1)
    """Approximate share of the rows, decided per row."""
    seed: int = Field(default=0, ge=0)
    """The same seed and rows give the same sample."""
    allow_fewer: bool = False
    """Whether fewer than n rows are accepted."""

    @model_validator(mode="after")
    def _has_one_size(self) -> Self:
        if (self.n is None) is (self.fraction is None):
            raise ValueError("a sample has either n (how many) or fraction (what share). Set one of them.")
        return self


class SampleRows(BaseTransform[SampleConfig]):
    """Keeps a random sample of the rows: a number or a share.

    Samples nest: with one seed, a smaller sample is a subset of a larger one, so a learning curve only adds rows. Every
    row gets a number from the seed and its position; the rows with the smallest numbers stay.
    """

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
        chosen: list[tuple[float, int, Row]] = []  # a max-heap by negated numbers
        for position, row in enumerate(rows):
            number = -draw()
            # The position breaks ties, because rows cannot be compared.
            if len(chosen) < n:
                heapq.heappush(chosen, (number, -position, row))
            elif number > chosen[0][0]:
                heapq.heapreplace(chosen, (number, -position, row))
        if len(chosen) < n and not self.cfg.allow_fewer:
            raise DataError(
                f"a sample of {n} needs as many rows, but there are only {len(chosen)}. Lower n or set allow_fewer."
            )
        chosen.sort(key=lambda item: -item[1])  # restore the input order
        yield from (row for _, _, row in chosen)


class SplitConfig(TransformConfig):
    """Parts of the split and their shares."""

    part: Literal["train", "val", "test"] = "train"
    """The part to keep."""
    train: float = Field(default=0.8, ge=0, le=1)
    """Share of the train part."""
    val: float = Field(default=0.1, ge=0, le=1)
    """Share of the val part."""
    test: float = Field(default=0.1, ge=0, le=1)
    """Share of the test part."""
    key: str | None = Field(default=None, min_length=1)
    """Field of the row or its metadata that determines the part; by default the whole row, so split before changing
    rows.
    """
    salt: str = ""
    """Another salt gives another split with the same shares."""

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        total = self.train + self.val + self.test
        if not math.isclose(total, 1, abs_tol=1e-9):
            raise ValueError(f"train, val and test must add up to 1, but they add up to {total:g}. Change one of them.")
        if getattr(self, self.part) == 0:
            raise ValueError(f"the part to keep, '{self.part}', has a share of 0. Give it one.")
        return self


class Split(RowTransform[SplitConfig]):
    """Keeps one part of a train/val/test split by content.

    - {kind: split, params: {part: train, key: user_id}}

    Rows with the same key are in the same part, so a user (or a repeated question) is never in two.
    """

    name: ClassVar[str] = "split"
    Config = SplitConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        cfg = self.cfg
        self._read: Reader = require(cfg.key) if cfg.key is not None else lambda row: row
        self._salt = digest(cfg.salt) if cfg.salt else b""
        edges = {"train": (0.0, cfg.train), "val": (cfg.train, cfg.train + cfg.val), "test": (cfg.train + cfg.val, 1.0)}
        self._low, self._high = edges[cfg.part]
        if (cfg.part == "train" and not cfg.val + cfg.test) or (cfg.part == "val" and not cfg.test):
            self._high = 1.0  # the float sum of shares may be slightly below 1

    def row(self, row: Row) -> Row | None:
        """The row, if it is in the part."""
        return row if self._low <= unit_interval(digest(self._read(row), self._salt)) < self._high else None


_NOT_WORDS = re.compile(r"[^\w\s]|_")


class DedupeConfig(TransformConfig):
    """Equality of rows."""

    key: str | list[str] | None = Field(default=None, min_length=1)
    """Field or fields of the row or its metadata that must be equal; by default the whole row."""
    mode: Literal["exact", "normalized"] = "exact"
    """`normalized` ignores case, width of characters and amount of whitespace."""
    ignore_punctuation: bool = False
    """Whether normalized comparison also ignores punctuation."""


class Dedupe(RowTransform[DedupeConfig]):
    """Drops rows that equal an earlier one, as a whole or in some fields.

    It stores a fingerprint per row (about 100 bytes), not the row.

    - {kind: dedupe, params: {key: query}}
    """

    name: ClassVar[str] = "dedupe"
    Config = DedupeConfig

    def begin(self) -> RowFunction:
        """A new set of fingerprints for each pass."""
        identity = self._identity()
        seen: set[bytes] = set()

        def keep_first(row: Row) -> Row | None:
            before = len(seen)  # one lookup instead of two
            seen.add(digest(identity(row)))
            return row if len(seen) > before else None

        return keep_first

    def _identity(self) -> Callable[[Row], Any]:
        """A function from a row to its comparison value."""
        key = self.cfg.key
        names = [key] if isinstance(key, str) else key or []
        readers = [require(name) for name in names]

        def read(row: Row) -> Any:
            return [read_one(row) for read_one in readers] if readers else row

        exact = readers[0] if len(readers) == 1 else read
        if self.cfg.mode == "exact":
            return exact
        return lambda row: normalize(exact(row), without_punctuation=self.cfg.ignore_punctuation)


def normalize(value: Any, *, without_punctuation: bool = False) -> Any:
    """A value with case, width of characters and whitespace of its texts normalised."""
    if isinstance(value, str):
        text = unicodedata.normalize("NFKC", value).casefold()
        if without_punctuation:
            text = _NOT_WORDS.sub(" ", text)
        return " ".join(text.split())
    if is_object(value):
        return {key: normalize(part, without_punctuation=without_punctuation) for key, part in value.items()}
    if is_list(value):
        return [normalize(part, without_punctuation=without_punctuation) for part in value]
    return value
