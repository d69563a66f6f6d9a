"""Transforms of turns: `add_system_prompt` and `strip_thinking`."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import DataError
from ...protocols import Row
from ..chat import change_text, messages_of, text_block
from ..shapes import is_list, is_object
from ..transform import RowTransform, TransformConfig
from ..types import Message


class AddSystemPromptConfig(TransformConfig):
    """The system message to add."""

    prompt: str = Field(min_length=1)
    """The system message, inserted verbatim."""
    existing: Literal["keep", "replace", "prepend", "error"] = "keep"
    """Treatment of an existing system message; `prepend` puts the prompt before its text."""


class AddSystemPrompt(RowTransform[AddSystemPromptConfig]):
    """Adds a system message to conversations."""

    name: ClassVar[str] = "add_system_prompt"
    Config = AddSystemPromptConfig

    def row(self, row: Row) -> Row:
        """The row with a system message."""
        messages = messages_of(row)
        message: Message = {"role": "system", "content": self.cfg.prompt}
        if not messages or messages[0].get("role") not in ("system", "developer"):
            return {**row, "messages": [message, *messages]}
        existing = messages[0].get("content")
        match self.cfg.existing:
            case "keep":
                return row
            case "error":
                raise DataError(
                    "the conversation has a system message already. Set existing to keep, replace or prepend."
                )
            case "prepend" if isinstance(existing, str):
                message = {**messages[0], "content": f"{self.cfg.prompt}\n\n{existing}"}
            case "prepend":
                blocks = existing if is_list(existing) else []
                message = {**messages[0], "content": [text_block(self.cfg.prompt), *blocks]}
            case "replace":
                pass
        return {**row, "messages": [message, *messages[1:]]}


class StripThinkingConfig(TransformConfig):
    """Tags and keys of reasoning."""

    tags: list[str] = Field(default=["think", "thinking"], min_length=1)
    """Names of the tags around reasoning, without brackets; case-insensitive."""
    keys: list[str] = ["reasoning_content", "reasoning"]
    """Keys of a message that contain reasoning."""
    if_empty: Literal["error", "drop", "keep"] = "error"
    """Treatment of a row with an assistant turn that has only reasoning."""


class StripThinking(RowTransform[StripThinkingConfig]):
    """Removes reasoning from the assistant's turns.

    For example for an ablation of thinking traces.

    A closing tag without an opening one ends reasoning that started in the prompt; an opening tag without a closing one
    starts reasoning that was cut off. In both cases only the certain part of the answer stays.
    """

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
        answers = [message for message in messages if message.get("role") == "assistant"]
        is_complete = target != "" and all(map(_has_content, answers))
        if self.cfg.if_empty == "keep" or is_complete:
            return stripped
        if self.cfg.if_empty == "error":
            raise DataError("an assistant's turn is nothing but reasoning. Set if_empty to drop or keep.")
        return None

    def _message(self, message: Message) -> Message:
        if message.get("role") != "assistant":
            return message
        cleaned = {key: value for key, value in message.items() if key not in self.cfg.keys}
        content = cleaned.get("content")
        if is_list(content):
            thoughts = ("thinking", "redacted_thinking")
            cleaned["content"] = [
                block for block in content if not is_object(block) or block.get("type") not in thoughts
            ]
        return change_text(cleaned, self._text)

    def _text(self, text: str) -> str:
        """The text without reasoning, in one pass over nested tags."""
        if self._tag.search(text) is None:
            return text
        parts: list[str] = []
        depth = end = 0
        for tag in self._tag.finditer(text):
            if tag[1] and depth == 0:  # started in the prompt: everything before is reasoning
                parts.clear()
            elif depth == 0:
                parts.append(text[end : tag.start()])
            depth = max(0, depth - 1) if tag[1] else depth + 1
            end = tag.end()
        if depth == 0:  # otherwise cut off inside reasoning
            parts.append(text[end:])
        return "".join(parts).strip()


def _has_content(message: Message) -> bool:
    content = message.get("content")
    if is_list(content):  # keep blocks that are now empty
        content = [block for block in content if not is_object(block) or block.get("text") != ""]
    return bool(content or message.get("tool_calls"))
