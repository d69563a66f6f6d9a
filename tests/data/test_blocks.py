"""Content blocks in both shapes, and finding images in rows."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.data import (
    ChatMessagesRow,
    HarborTask,
    InProcessVerifier,
    PromptExample,
    block_to_image_src,
    has_images,
    image_base64_block,
    image_url_block,
    text_block,
)
from evsys_sdk.errors import DataError

IMAGE = image_url_block("https://example.org/cat.png")


def test_blocks_have_the_shapes_of_their_providers() -> None:
    assert text_block("hi") == {"type": "text", "text": "hi"}
    assert image_url_block("u", detail="low") == {"type": "image_url", "image_url": {"url": "u", "detail": "low"}}
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert image_base64_block("image/png", "aGk=") == {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("block", "src"),
    [
        (image_url_block("images/cat.png"), "images/cat.png"),
        ({"type": "image_url", "image_url": "https://x/y"}, "https://x/y"),
        ({"type": "input_image", "image_url": "https://x/y"}, "https://x/y"),
        (image_base64_block("image/png", "aGk="), "data:image/png;base64,aGk="),
        ({"type": "image", "source": {"type": "url", "url": "https://x/y"}}, "https://x/y"),
        (text_block("no image"), None),
        ({"type": "image_url"}, None),
        ({"type": "image", "source": {"type": "base64"}}, None),
        ({}, None),
    ],
)
def test_an_image_block_of_any_shape_has_a_source_to_show(block: dict[str, Any], src: str | None) -> None:
    assert block_to_image_src(block) == src


def test_a_media_type_that_is_no_image_is_refused() -> None:
    with pytest.raises(DataError, match="image/png"):
        image_base64_block("text/plain", "aGk=")


@pytest.mark.parametrize(
    "row",
    [
        ChatMessagesRow([{"role": "user", "content": [text_block("what?"), IMAGE]}]),
        HarborTask("t", [IMAGE], InProcessVerifier("exact_match")),
        PromptExample({"picture": [IMAGE]}),
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
        {"instruction": [IMAGE]},
        {"inputs": {"picture": [IMAGE]}},
    ],
)
def test_an_image_anywhere_in_a_row_is_found(row: Any) -> None:
    assert has_images(row)


@pytest.mark.parametrize(
    "row",
    [
        ChatMessagesRow([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{}]}]),
        HarborTask("t", "do", InProcessVerifier("exact_match")),
        PromptExample({"question": "what?"}),
        {"messages": None, "inputs": "text", "instruction": 3},
        {},
    ],
)
def test_a_row_without_images_has_none(row: Any) -> None:
    assert not has_images(row)
