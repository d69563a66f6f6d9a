"""`strip_thinking`: reasoning out, answers in. One arm of the ablation "with or without thinking traces".

A closing tag without an opening one ends reasoning that began in the prompt; an opening tag without a closing one
begins reasoning that was cut off. In both cases only what is surely the answer stays.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import DataError
from ...protocols import Row
from ..chat import change_text, messages_of
from ..shapes import is_list, is_object
from ..transform import RowTransform, TransformConfig
from ..types import Message


class StripThinkingConfig(TransformConfig):
    """What counts as reasoning."""

    tags: list[str] = Field(default=["think", "thinking"], min_length=1)
    """Names of the tags around it, without brackets; case does not matter."""
    keys: list[str] = ["reasoning_content", "reasoning"]
    """Keys of a message that hold it apart from the content."""
    if_empty: Literal["error", "drop", "keep"] = "error"
    """What to do with a row in which an assistant's turn was nothing but reasoning."""


class StripThinking(RowTransform[StripThinkingConfig]):
    """Removes reasoning from the assistant's turns."""

    name: ClassVar[str] = "strip_thinking"
    Config = StripThinkingConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        names = "|".join(re.escape(tag) for tag in self.cfg.tags)
        self._tag = re.compile(rf"<(/?)(?:{names})\s*>", re.IGNORECASE)

    def row(self, row: Row) -> Row | None:
        """The row without reasoning."""
        messages = [self._message(message) for message in messages_of(row)]
        target = row.get("target_assistant")
        stripped: Row = {**row, "messages": messages}
        if isinstance(target, str):
            stripped["target_assistant"] = target = self._text(target)
        if self.cfg.if_empty == "keep" or (target != "" and not any(_is_empty(message) for message in messages)):
            return stripped
        if self.cfg.if_empty == "error":
            raise DataError("an assistant's turn is nothing but reasoning. Set if_empty to drop or keep.")
        return None

    def _message(self, message: Message) -> Message:
        if message.get("role") != "assistant":
            return message
        kept = {key: value for key, value in message.items() if key not in self.cfg.keys}
        content = kept.get("content")
        if is_list(content):
            kept["content"] = [block for block in content if not _is_thinking_block(block)]
        return change_text(kept, self._text)

    def _text(self, text: str) -> str:
        """One pass over the tags, however they are nested."""
        if self._tag.search(text) is None:
            return text
        kept: list[str] = []
        depth = end = 0
        for tag in self._tag.finditer(text):
            if tag[1] and depth == 0:
                kept.clear()
            elif depth == 0:
                kept.append(text[end : tag.start()])
            depth = max(0, depth - 1) if tag[1] else depth + 1
            end = tag.end()
        if depth == 0:
            kept.append(text[end:])
        return "".join(kept).strip()


def _is_thinking_block(block: Any) -> bool:
    return is_object(block) and block.get("type") in ("thinking", "redacted_thinking")


def _is_empty(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls")
