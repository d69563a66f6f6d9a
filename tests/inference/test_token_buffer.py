"""Sampled tokens stay as they were sampled, and only new messages are tokenized."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from evsys_sdk.inference import get_renderer
from evsys_sdk.inference.token_buffer import BufferedPrompt, TokenBuffer

from .test_chat_template import CharacterTokenizer, Template, bracketed, chatml, ends_text, strips_thinking, text_marks

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def with_tools(messages: Sequence[dict[str, Any]], generate: bool, tools: Sequence[Any] = ()) -> str:
    head = f"<|im_start|>system\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
    return head + chatml(messages, generate)


class Talk:
    """A conversation through a buffer, answered with given texts."""

    def __init__(self, template: Template, tools: Sequence[Any] = ()) -> None:
        self.tokenizer = CharacterTokenizer(template)
        self.renderer = get_renderer(self.tokenizer)
        self.buffer, self.tools = TokenBuffer(self.renderer), list(tools)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]

    def answer(self, text: str) -> tuple[BufferedPrompt, list[int]]:
        prompt = self.buffer.prompt(self.messages, self.tools)
        sampled = self.tokenizer.encode(text, add_special_tokens=False)
        message = self.renderer.parse(sampled, self.tools)
        self.buffer.add(self.messages, self.tools, message, prompt, sampled)
        self.messages.append(message)
        return prompt, sampled

    def hear(self, text: str, role: str = "user") -> None:
        self.messages.append({"role": role, "content": text})


@pytest.mark.parametrize(
    ("template", "end"),
    [(chatml, "<|im_end|>"), (strips_thinking, "<|im_end|>"), (bracketed, " </s>"), (ends_text, "<|end|>"),
     (text_marks, "\n###")],
)  # fmt: skip
def test_every_prompt_begins_with_the_tokens_before_it(template: Template, end: str) -> None:
    talk = Talk(template)
    before: list[int] = []
    for turn in range(4):
        prompt, sampled = talk.answer(f"<think>\nhm\n</think>\n\nanswer {turn}{end}")
        assert prompt.tokens[: len(before)] == before
        assert prompt.continues == (turn > 0)
        text = talk.tokenizer.decode(prompt.tokens)
        assert text.count("answer") == turn
        assert not turn or f"next {turn - 1}" in text
        before = [*prompt.tokens, *sampled]
        talk.hear(f"next {turn}")


def test_a_template_that_keeps_history_gives_the_same_text_as_the_buffer() -> None:
    talk = Talk(chatml)
    for turn in range(3):
        prompt, _ = talk.answer(f"answer {turn}<|im_end|>")
        assert prompt.as_template
        assert talk.tokenizer.decode(prompt.tokens) == chatml(talk.messages[:-1], True)
        talk.hear("next")


def test_thinking_that_the_template_would_drop_stays_and_is_said_to() -> None:
    talk = Talk(strips_thinking)
    talk.answer("<think>\nhm\n</think>\n\nyes<|im_end|>")
    talk.hear("sure?")
    prompt, _ = talk.answer("yes<|im_end|>")
    assert "hm" in talk.tokenizer.decode(prompt.tokens)
    assert not prompt.as_template


def test_an_answer_that_was_cut_off_is_closed_before_the_next_message() -> None:
    talk = Talk(chatml)
    talk.answer("half an ans")
    talk.hear("go on")
    prompt, _ = talk.answer("wer<|im_end|>")
    assert talk.tokenizer.decode(prompt.tokens) == chatml(talk.messages[:-1], True)


def test_calls_and_results_are_appended_and_ids_and_blanks_do_not_matter() -> None:
    talk = Talk(with_tools, [TOOL])
    _, sampled = talk.answer('hm <tool_call>{"name":   "look", "arguments": {"at": [1]}}</tool_call><|im_end|>')
    assert talk.messages[-1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": [1]}}
    function = {"name": "look", "arguments": '{"at":[1]}'}  # as OpenAI clients send it back
    talk.messages[-1] = {"role": "assistant", "content": "hm\n", "tool_calls": [{"id": "other", "function": function}]}
    talk.hear("a cat", role="tool")
    prompt, _ = talk.answer("a cat<|im_end|>")
    assert prompt.continues
    assert "".join(map(str, sampled)) in "".join(map(str, prompt.tokens))
    assert talk.tokenizer.decode(prompt.tokens).endswith("\n<|im_start|>tool\na cat<|im_end|>\n<|im_start|>assistant\n")


def test_a_rewritten_history_starts_a_branch() -> None:
    talk = Talk(chatml)
    talk.answer("one<|im_end|>")
    talk.hear("next")
    talk.answer("two<|im_end|>")
    compacted = [{"role": "user", "content": "summary"}, {"role": "assistant", "content": "ok"}, talk.messages[0]]
    prompt = talk.buffer.prompt(compacted)
    assert not prompt.continues
    assert prompt.tokens == talk.renderer.prompt(compacted)
