"""Helpers for conversations: images, text content, and the questions and answers of rows.

Two kinds of image blocks are supported, `image_url` (OpenAI) and `image` with a `source` (Anthropic). Blocks are plain
dicts, so rows round-trip through JSONL. Images are not loaded or decoded.

    {"role": "user", "content": [text_block("What is this?"), image_url_block("images/cat.png")]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from ..errors import DataError, show
from ..protocols import Row
from .shapes import is_list, is_object
from .types import Block, ChatMessagesRow, HarborTask, Message, PromptExample, TypedRow


def text_block(text: str) -> Block:
    """A text block next to images."""
    return {"type": "text", "text": text}


def image_url_block(url: str, detail: Literal["auto", "low", "high"] | None = None) -> Block:
    """An image block with a URL, data URL or path, in OpenAI's form."""
    image = {"url": url} if detail is None else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image}


def image_base64_block(media_type: str, b64: str) -> Block:
    """An embedded image block in Anthropic's form."""
    if not media_type.startswith("image/"):
        raise DataError(f"media_type must look like 'image/png', not {show(media_type)}.")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": b64}}


def block_to_image_src(block: Mapping[str, Any]) -> str | None:
    """The URL of an image block of any form; None for other blocks."""
    kind = block.get("type")
    if kind in ("image_url", "input_image"):  # OpenAI's Responses API has the URL without an object
        image = block.get("image_url")
        url = cast(Mapping[str, Any], image).get("url") if isinstance(image, Mapping) else image
        return url if isinstance(url, str) else None
    source = block.get("source")
    if kind == "image" and isinstance(source, Mapping):
        return _source_to_src(cast(Mapping[str, Any], source))
    return None


def has_images(row: TypedRow | Mapping[str, Any]) -> bool:
    """Whether any message, instruction or input of a row (typed or raw) has an image."""
    return any(block_to_image_src(block) is not None for part in _contents(row) for block in _blocks(part))


def _source_to_src(source: Mapping[str, Any]) -> str | None:
    match source:
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return f"data:{media_type};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
        case _:
            return None


def _contents(row: TypedRow | Mapping[str, Any]) -> Iterator[Any]:
    match row:
        case ChatMessagesRow():
            yield from (message.get("content") for message in row.messages)
        case HarborTask():
            yield row.instruction
        case PromptExample():
            yield from row.inputs.values()
        case _:
            yield from (message.get("content") for message in _dicts(row.get("messages")))
            yield row.get("instruction")
            inputs = row.get("inputs")
            yield from cast(Mapping[str, Any], inputs).values() if isinstance(inputs, Mapping) else ()


def _blocks(content: Any) -> Iterator[Mapping[str, Any]]:
    """The blocks of a content, including those nested in tool results."""
    for block in _dicts(content):
        yield block
        yield from _blocks(block.get("content"))


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in cast(list[Any], value) if isinstance(item, Mapping))


PROMPT_FIELDS = ("prompt", "query", "question", "instruction", "input", "problem")
"""Common names of the prompt column, in order of precedence."""
ANSWER_FIELDS = ("completion", "response", "answer", "output", "solution")
"""Common names of the answer column."""


def messages_of(row: Row) -> list[Message]:
    """The messages of a row; refuses a row without a conversation."""
    messages = row.get("messages")
    if not is_list(messages):
        remedy = "Put a transform before this one that makes conversations, e.g. jsonl_to_chat"
        raise DataError(f"the row has no list of messages; it has the keys {', '.join(map(str, row))}. {remedy}.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(f"messages[{index}] must be an object with role and content, not {show(message)}.")
    return messages


def last_index(messages: Sequence[Message], role: str) -> int | None:
    """Index of the last message of a role."""
    return next((index for index in range(len(messages) - 1, -1, -1) if messages[index].get("role") == role), None)


def text_of(content: Any) -> str:
    """The text of a content, without images."""
    if isinstance(content, str):
        return content
    blocks = content if is_list(content) else []
    texts = [block.get("text") for block in blocks if is_object(block)]
    return "\n".join(text for text in texts if isinstance(text, str))


def change_text(message: Message, change: Callable[[str], str]) -> Message:
    """The message with its text changed, in plain text or text blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": change(content)}
    if is_list(content):
        return {**message, "content": [_change_block(block, change) for block in content]}
    return message


def answer_of(row: Row) -> str | None:
    """The answer of a conversation: `target_assistant`, else the last assistant turn."""
    target = row.get("target_assistant")
    if isinstance(target, str):
        return target
    messages = messages_of(row)
    index = last_index(messages, "assistant")
    return None if index is None else text_of(messages[index].get("content"))


def first_field(row: Row, names: Sequence[str]) -> str | None:
    """The first of `names` with a value in the row."""
    return next((name for name in names if row.get(name) is not None), None)


def _change_block(block: Any, change: Callable[[str], str]) -> Any:
    if is_object(block) and isinstance(block.get("text"), str):
        return {**block, "text": change(block["text"])}
    return block
