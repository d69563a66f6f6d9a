"""`identity`: for pipelines that need a step that does nothing, e.g. as one arm of an ablation."""

from __future__ import annotations

from typing import ClassVar

from ...protocols import Row
from ..transform import NoParams, RowTransform


class Identity(RowTransform[NoParams]):
    """Passes every row on unchanged."""

    name: ClassVar[str] = "identity"
    Config = NoParams

    def row(self, row: Row) -> Row:
        """The row itself."""
        return row
