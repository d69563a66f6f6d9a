"""`add_system_prompt`: begin conversations with instructions to the model."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...errors import DataError
from ...protocols import Row
from ..blocks import text_block
from ..chat import messages_of
from ..shapes import is_list
from ..transform import RowTransform, TransformConfig
from ..types import Message


class AddSystemPromptConfig(TransformConfig):
    """What the prompt says."""

    prompt: str = Field(min_length=1)
    """The system message, used as it is."""
    existing: Literal["keep", "replace", "prepend", "error"] = "keep"
    """What to do about a system message that is there already; `prepend` puts ours in front of its text."""


class AddSystemPrompt(RowTransform[AddSystemPromptConfig]):
    """Puts a system message at the start of conversations."""

    name: ClassVar[str] = "add_system_prompt"
    Config = AddSystemPromptConfig

    def row(self, row: Row) -> Row:
        """The row with a system message."""
        messages = messages_of(row)
        ours: Message = {"role": "system", "content": self.cfg.prompt}
        if not messages or messages[0].get("role") not in ("system", "developer"):
            return {**row, "messages": [ours, *messages]}
        theirs = messages[0].get("content")
        match self.cfg.existing:
            case "keep":
                return row
            case "error":
                raise DataError(
                    "the conversation has a system message already. Set existing to keep, replace or prepend."
                )
            case "prepend" if isinstance(theirs, str):
                ours = {**messages[0], "content": f"{self.cfg.prompt}\n\n{theirs}"}
            case "prepend":
                blocks = theirs if is_list(theirs) else []
                ours = {**messages[0], "content": [text_block(self.cfg.prompt), *blocks]}
            case "replace":
                pass
        return {**row, "messages": [ours, *messages[1:]]}
