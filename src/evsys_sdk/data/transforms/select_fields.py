"""`select_fields`: keep some fields and drop the rest."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...errors import MISSING
from ...protocols import Row
from ..fields import no_such_field, read_exactly, with_field
from ..transform import RowTransform, TransformConfig


class SelectFieldsConfig(TransformConfig):
    """Which fields stay."""

    fields: list[str] = Field(min_length=1)
    """Fields to keep; a dotted path keeps only that part of an object."""
    missing: Literal["error", "skip"] = "error"
    """What to do about a field that a row does not have."""


class SelectFields(RowTransform[SelectFieldsConfig]):
    """Keeps only the named fields."""

    name: ClassVar[str] = "select_fields"
    Config = SelectFieldsConfig

    def row(self, row: Row) -> Row:
        """The named fields of the row."""
        kept: Row = {}
        for field in self.cfg.fields:
            value = read_exactly(row, field)
            if value is not MISSING:
                kept = {**kept, field: value} if field in row else with_field(kept, field, value)
            elif self.cfg.missing == "error":
                raise no_such_field(field, row)
        return kept
