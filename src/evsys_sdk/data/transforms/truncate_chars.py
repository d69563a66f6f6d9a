"""`truncate_chars`: a limit on the length of text, in characters (tokens are the training loop's business)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...errors import MISSING, DataError, show
from ...protocols import Row
from ..chat import change_text, messages_of
from ..fields import no_such_field, read_exactly, with_field
from ..transform import RowTransform, TransformConfig
from ..types import Message


class TruncateCharsConfig(TransformConfig):
    """How long, and what."""

    max_chars: int = Field(ge=1)
    """Longest text that stays as it is; the marker counts."""
    field: str | None = Field(default=None, min_length=1)
    """The text field to shorten, as a dotted path; by default the text of every message."""
    roles: list[str] | None = Field(default=None, min_length=1)
    """Shorten only messages of these roles."""
    keep: Literal["start", "end"] = "start"
    """Which end of the text stays."""
    marker: str = ""
    """Put where text was cut, e.g. ' [...]'."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.marker) >= self.max_chars:
            raise ValueError("the marker must be shorter than max_chars. Shorten it.")
        if self.field is not None and self.roles is not None:
            raise ValueError("roles are for messages, and field names another text. Remove one of them.")
        return self


class TruncateChars(RowTransform[TruncateCharsConfig]):
    """Cuts long text at a number of characters."""

    name: ClassVar[str] = "truncate_chars"
    Config = TruncateCharsConfig

    def row(self, row: Row) -> Row:
        """The row with shorter text."""
        field = self.cfg.field
        if field is None:
            return {**row, "messages": [self._message(message) for message in messages_of(row)]}
        value = read_exactly(row, field)
        if value is MISSING:
            raise no_such_field(field, row)
        if not isinstance(value, str):
            raise DataError(f"the field '{field}' is not text but {show(value)}.")
        return with_field(row, field, self._cut(value))

    def _message(self, message: Message) -> Message:
        roles = self.cfg.roles
        return change_text(message, self._cut) if roles is None or message.get("role") in roles else message

    def _cut(self, text: str) -> str:
        if len(text) <= self.cfg.max_chars:
            return text
        room = self.cfg.max_chars - len(self.cfg.marker)
        return text[:room] + self.cfg.marker if self.cfg.keep == "start" else self.cfg.marker + text[-room:]
