"""`drop_fields`: remove fields."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...protocols import Row
from ..fields import no_such_field, without_field
from ..transform import RowTransform, TransformConfig


class DropFieldsConfig(TransformConfig):
    """Which fields go."""

    fields: list[str] = Field(min_length=1)
    """Fields to remove; dotted paths reach into objects."""
    missing: Literal["error", "skip"] = "skip"
    """What to do about a field that a row does not have."""


class DropFields(RowTransform[DropFieldsConfig]):
    """Removes the named fields."""

    name: ClassVar[str] = "drop_fields"
    Config = DropFieldsConfig

    def row(self, row: Row) -> Row:
        """The row without them."""
        rest = row
        for field in self.cfg.fields:
            shorter = without_field(rest, field)
            if shorter is rest and self.cfg.missing == "error":
                raise no_such_field(field, row)
            rest = shorter
        return rest
