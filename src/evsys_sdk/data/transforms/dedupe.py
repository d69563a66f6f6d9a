"""`dedupe`: drop rows that were there before. Of each row seen it keeps a fingerprint (about 100 bytes), not the row.

- {kind: dedupe, params: {key: query}}
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...protocols import Row
from ..digest import digest
from ..fields import required
from ..shapes import is_list, is_object
from ..transform import RowFunction, RowTransform, TransformConfig

_NOT_WORDS = re.compile(r"[^\w\s]|_")


class DedupeConfig(TransformConfig):
    """When two rows count as the same."""

    key: str | list[str] | None = Field(default=None, min_length=1)
    """Field, or fields, that must be equal; found in the row or in its metadata. By default the whole row."""
    mode: Literal["exact", "normalized"] = "exact"
    """With normalized, text is compared without regard to case, width of characters and amount of whitespace."""
    ignore_punctuation: bool = False
    """Compare normalized text without punctuation too."""


class Dedupe(RowTransform[DedupeConfig]):
    """Drops rows that equal an earlier one, as a whole or in some fields."""

    name: ClassVar[str] = "dedupe"
    Config = DedupeConfig

    def begin(self) -> RowFunction:
        """A fresh memory for each pass."""
        identity = self._identity()
        seen: set[bytes] = set()

        def keep_first(row: Row) -> Row | None:
            before = len(seen)
            seen.add(digest(identity(row)))
            return row if len(seen) > before else None

        return keep_first

    def _identity(self) -> Callable[[Row], Any]:
        """What stands for a row when rows are compared."""
        key = self.cfg.key
        names = [key] if isinstance(key, str) else key or []
        readers = [required(name) for name in names]

        def read(row: Row) -> Any:
            return [read_one(row) for read_one in readers] if readers else row

        exact = readers[0] if len(readers) == 1 else read
        if self.cfg.mode == "exact":
            return exact
        return lambda row: _normalized(exact(row), without_punctuation=self.cfg.ignore_punctuation)


def _normalized(value: Any, *, without_punctuation: bool) -> Any:
    if isinstance(value, str):
        text = unicodedata.normalize("NFKC", value).casefold()
        if without_punctuation:
            text = _NOT_WORDS.sub(" ", text)
        return " ".join(text.split())
    if is_object(value):
        return {key: _normalized(part, without_punctuation=without_punctuation) for key, part in value.items()}
    if is_list(value):
        return [_normalized(part, without_punctuation=without_punctuation) for part in value]
    return value
