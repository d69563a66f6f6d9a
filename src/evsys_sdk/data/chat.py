"""Conversations: the questions that several transforms ask about them, and content that is more than plain text.

Two shapes of image are understood everywhere, `image_url` (OpenAI) and `image` with a `source` (Anthropic). Blocks
are plain dicts, so that a row goes to JSONL and back unchanged. Nothing here loads or decodes an image.

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
    """Text next to images."""
    return {"type": "text", "text": text}


def image_url_block(url: str, detail: Literal["auto", "low", "high"] | None = None) -> Block:
    """An image by address (or data URL, or path), in OpenAI's shape."""
    image = {"url": url} if detail is None else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image}


def image_base64_block(media_type: str, b64: str) -> Block:
    """An image inside the row, in Anthropic's shape."""
    if not media_type.startswith("image/"):
        raise DataError(f"media_type must look like 'image/png', not {show(media_type)}.")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": b64}}


def block_to_image_src(block: Mapping[str, Any]) -> str | None:
    """What a browser can show for an image block, whichever its shape; None when it is not an image."""
    kind = block.get("type")
    if kind in ("image_url", "input_image"):  # the latter is of OpenAI's Responses, where the address stands alone
        image = block.get("image_url")
        url = cast(Mapping[str, Any], image).get("url") if isinstance(image, Mapping) else image
        return url if isinstance(url, str) else None
    source = block.get("source")
    if kind == "image" and isinstance(source, Mapping):
        return _source_to_src(cast(Mapping[str, Any], source))
    return None


def has_images(row: TypedRow | Mapping[str, Any]) -> bool:
    """Whether any message, instruction or input of a row (typed or raw) holds an image."""
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
    """The blocks of a content, with those inside tool results (which nest their own content)."""
    for block in _dicts(content):
        yield block
        yield from _blocks(block.get("content"))


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in cast(list[Any], value) if isinstance(item, Mapping))


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
