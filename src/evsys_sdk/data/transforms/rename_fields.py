"""`rename_fields`: give fields the names that other transforms expect."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...errors import MISSING, DataError
from ...protocols import Row
from ..fields import no_such_field, read_exactly, with_field, without_field
from ..transform import RowTransform, TransformConfig


class RenameFieldsConfig(TransformConfig):
    """Which fields get which names."""

    fields: dict[str, str] = Field(min_length=1)
    """Old name -> new name; both may be dotted paths, e.g. {meta.topic: topic}."""
    missing: Literal["error", "skip"] = "error"
    """What to do about a field that a row does not have."""


class RenameFields(RowTransform[RenameFieldsConfig]):
    """Renames fields, or moves them into and out of nested objects."""

    name: ClassVar[str] = "rename_fields"
    Config = RenameFieldsConfig

    def row(self, row: Row) -> Row:
        """The row under its new names; all moves happen at once, so that two names can be swapped."""
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
