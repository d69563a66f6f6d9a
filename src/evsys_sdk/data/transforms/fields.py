"""Transforms of fields: `rename_fields`, `drop_fields` and `map_values`. Dotted paths access nested fields."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import MISSING, DataError
from ...protocols import Row
from ..fields import no_such_field, read_exactly, with_field, without_field
from ..transform import RowTransform, TransformConfig


class RenameFieldsConfig(TransformConfig):
    """Old and new field names."""

    fields: dict[str, str] = Field(min_length=1)
    """Old name -> new name; both may be dotted paths, e.g. {meta.topic: topic}."""
    missing: Literal["error", "skip"] = "error"
    """Treatment of a missing field."""


class RenameFields(RowTransform[RenameFieldsConfig]):
    """Renames fields, or moves them into and out of nested objects."""

    name: ClassVar[str] = "rename_fields"
    Config = RenameFieldsConfig

    def row(self, row: Row) -> Row:
        """The row with renamed fields; all renames happen together, so names can be swapped."""
        moved: dict[str, object] = {}
        rest = row
        for old, new in self.cfg.fields.items():
            value = read_exactly(row, old)
            if value is not MISSING:
                moved[new] = value
                rest = without_field(rest, old)
            elif self.cfg.missing == "error":
                raise no_such_field(old, row)
        for new, value in moved.items():
            if read_exactly(rest, new) is not MISSING:
                raise DataError(f"the row has a field '{new}' already. Drop it first with drop_fields.")
            rest = with_field(rest, new, value)
        return rest


class DropFieldsConfig(TransformConfig):
    """The fields to remove."""

    fields: list[str] = Field(min_length=1)
    """Fields to remove; dotted paths access nested fields."""
    missing: Literal["error", "skip"] = "skip"
    """Treatment of a missing field."""


class DropFields(RowTransform[DropFieldsConfig]):
    """Removes the named fields."""

    name: ClassVar[str] = "drop_fields"
    Config = DropFieldsConfig

    def row(self, row: Row) -> Row:
        """The row without the fields."""
        rest = row
        for field in self.cfg.fields:
            shorter = without_field(rest, field)
            if shorter is rest and self.cfg.missing == "error":
                raise no_such_field(field, row)
            rest = shorter
        return rest


class MapValuesConfig(TransformConfig):
    """Replacements of values."""

    field: str = Field(min_length=1)
    """Field whose values are replaced; may be a dotted path."""
    values: dict[str, Any] = Field(min_length=1)
    """Text -> replacement, e.g. {Billing: billing, N/A: null}. Other values stay."""


class MapValues(RowTransform[MapValuesConfig]):
    """Replaces values of one field, e.g. to merge several spellings of a label."""

    name: ClassVar[str] = "map_values"
    Config = MapValuesConfig

    def row(self, row: Row) -> Row:
        """The row with the value replaced; a row without the field stays unchanged."""
        value = read_exactly(row, self.cfg.field)
        if not isinstance(value, str) or value not in self.cfg.values:
            return row
        return with_field(row, self.cfg.field, self.cfg.values[value])
