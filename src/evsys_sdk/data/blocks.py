"""Content blocks: the parts of a message that is more than plain text.

Two shapes of image are understood everywhere, `image_url` (OpenAI) and `image` with a `source` (Anthropic). Blocks
are plain dicts, so that a row goes to JSONL and back unchanged. Nothing here loads or decodes an image.

    {"role": "user", "content": [text_block("What is this?"), image_url_block("images/cat.png")]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from ..errors import DataError, show
from .types import Block, ChatMessagesRow, HarborTask, PromptExample, TypedRow


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
    if kind in ("image_url", "input_image"):
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
    """The blocks of a content, with those inside tool results (which nest a content of their own)."""
    for block in _dicts(content):
        yield block
        yield from _blocks(block.get("content"))


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in cast(list[Any], value) if isinstance(item, Mapping))
