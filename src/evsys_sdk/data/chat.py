"""Small questions about conversations that several transforms ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DataError, show
from ..protocols import Row
from .shapes import is_list, is_object
from .types import Message

PROMPT_FIELDS = ("prompt", "query", "question", "instruction", "input", "problem")
"""Where datasets keep what was asked, in the order they are looked for."""
ANSWER_FIELDS = ("completion", "response", "answer", "output", "solution")
"""Where datasets keep what should be answered."""


def messages_of(row: Row) -> list[Message]:
    """The messages of a row that must be a conversation."""
    messages = row.get("messages")
    if not is_list(messages):
        remedy = "Put a transform before this one that makes conversations, e.g. jsonl_to_chat"
        raise DataError(f"the row has no list of messages; it has the keys {', '.join(map(str, row))}. {remedy}.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(f"messages[{index}] must be an object with role and content, not {show(message)}.")
    return messages


def last_index(messages: Sequence[Message], role: str) -> int | None:
    """Position of the last message of a role."""
    return next((index for index in range(len(messages) - 1, -1, -1) if messages[index].get("role") == role), None)


def text_of(content: Any) -> str:
    """The words of a content, without its images."""
    if isinstance(content, str):
        return content
    blocks = content if is_list(content) else []
    texts = [block.get("text") for block in blocks if is_object(block)]
    return "\n".join(text for text in texts if isinstance(text, str))


def change_text(message: Message, change: Callable[[str], str]) -> Message:
    """The message with its text changed, whether it is plain or stands between images."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": change(content)}
    if is_list(content):
        return {**message, "content": [_change_block(block, change) for block in content]}
    return message


def answer_of(row: Row) -> str | None:
    """The answer a conversation leads to: `target_assistant`, or else the assistant's last turn."""
    target = row.get("target_assistant")
    if isinstance(target, str):
        return target
    messages = messages_of(row)
    index = last_index(messages, "assistant")
    return None if index is None else text_of(messages[index].get("content"))


def first_field(row: Row, names: Sequence[str]) -> str | None:
    """The first of `names` that the row has with a value."""
    return next((name for name in names if row.get(name) is not None), None)


def _change_block(block: Any, change: Callable[[str], str]) -> Any:
    if is_object(block) and isinstance(block.get("text"), str):
        return {**block, "text": change(block["text"])}
    return block
