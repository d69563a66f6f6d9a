"""What a model reads: exact texts, because one character more or less is another prompt."""

from __future__ import annotations

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.eval import (
    DEFAULT_SYSTEM,
    DEFAULT_SYSTEM_NO_THINK,
    extract_predicted_slug,
    qwen3_chat_template_prompt,
    qwen_chat_prompt,
)

TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo"},
    {"role": "user", "content": [{"type": "text", "text": "three"}]},
]


def test_chatml_of_a_question() -> None:
    assert qwen_chat_prompt("hi", system="Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert qwen_chat_prompt("hi", system=None) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert qwen_chat_prompt("hi").startswith(f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n")


def test_qwen3_can_be_told_not_to_think() -> None:
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert qwen3_chat_template_prompt("hi", system=None) == plain
    assert qwen3_chat_template_prompt("hi", system=None, enable_thinking=False) == plain + "<think>\n\n</think>\n\n"


def test_a_conversation_keeps_its_own_system_prompt_and_qwen3_drops_earlier_reasoning() -> None:
    start, end = "<|im_start|>", "<|im_end|>\n"
    after = f"{start}user\nthree{end}{start}assistant\n"
    assert qwen3_chat_template_prompt(TURNS) == f"{start}user\none{end}{start}assistant\ntwo{end}{after}"
    assert "<think>\nhm\n</think>\n\ntwo" in qwen_chat_prompt(TURNS)


def test_what_chatml_does_not_write_here_is_refused() -> None:
    with pytest.raises(DataError, match=r"messages\[0\].role is 'tool'"):
        qwen_chat_prompt([{"role": "tool", "content": "4"}])
    with pytest.raises(DataError, match="is an image"):
        qwen_chat_prompt([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}])


@pytest.mark.parametrize("system", [DEFAULT_SYSTEM, DEFAULT_SYSTEM_NO_THINK])
def test_the_default_prompts_ask_for_what_extraction_reads(system: str) -> None:
    assert extract_predicted_slug(system.rpartition("like this: ")[2]) == "TOOL_SLUG"
