"""The exact tokens of a rollout's conversations: token in, token out.

An agent program sends the whole conversation with every request. Rendering it again would give other tokens than those
sampled (non-canonical splits, thinking that a template drops), and training would see one sequence per turn. The buffer
stores the tokens of each answer by its conversation and appends only the tokens of new messages. It is a tree: a
conversation that continues no known answer (a sub-agent, a rewritten history) starts a branch.

    buffer = TokenBuffer(renderer)
    prompt = buffer.prompt(messages)
    ...                                                   # sample
    buffer.add(messages, (), message, prompt, sampled)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.types import Message, ToolDefinition
from ..errors import DataError
from .conversation import split_thinking, text_messages
from .renderer import Renderer, decode

RAW = "raw"
"""Role of the single message of a raw text, which is not rendered with a chat template."""


@dataclass(frozen=True, slots=True)
class BufferedPrompt:
    """The prompt of an answer."""

    tokens: list[int]
    continues: bool
    """Whether it starts with an earlier prompt and answer, token for token."""
    as_template: bool = True
    """Whether the template keeps everything before the new messages."""


@dataclass(frozen=True, slots=True)
class _Answer:
    prompt: list[int]
    sampled: list[int]
    as_template: bool


class TokenBuffer:
    """The answers of one rollout, by conversation."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._answers: dict[bytes, _Answer] = {}
        self._texts: dict[str, list[int]] = {}
        """Raw text with its continuation -> tokens."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> BufferedPrompt:
        """The tokens of a conversation: those of its longest known prefix and of the messages after it."""
        if is_raw(messages):
            text = messages[0]["content"]
            start = max(filter(text.startswith, self._texts), key=len, default="")
            rest = self._renderer.tokenizer.encode(text[len(start) :], add_special_tokens=False)
            return BufferedPrompt([*self._texts.get(start, ()), *rest], bool(start))
        prefixes = [
            (end, answer)
            for end, key in enumerate(_keys(messages, tools), 1)
            if (answer := self._answers.get(key)) is not None and end < len(messages)
        ]
        if prefixes:
            end, answer = prefixes[-1]
            extension = self._renderer.extend(messages, end, answer.sampled, tools)
            if extension is not None:
                tokens = [*answer.prompt, *answer.sampled, *extension.tokens]
                return BufferedPrompt(tokens, True, answer.as_template and extension.as_template)
        return BufferedPrompt(self._renderer.prompt(messages, tools), False)

    def add(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        message: Message,
        prompt: BufferedPrompt,
        sampled: Sequence[int],
    ) -> None:
        """Store an answer."""
        if is_raw(messages):
            tokens = [token for token in sampled if token not in self._renderer.stop]  # the text excludes the stop mark
            self._texts[messages[0]["content"] + message["content"]] = [*prompt.tokens, *tokens]
            return
        *_, key = _keys([*messages, message], tools)
        self._answers[key] = _Answer(prompt.tokens, list(sampled), prompt.as_template)


def is_raw(messages: Sequence[Message]) -> bool:
    """Whether a prompt is one raw text."""
    return len(messages) == 1 and messages[0].get("role") == RAW


def parse_raw(renderer: Renderer, tokens: Sequence[int]) -> Message:
    """The continuation of a raw text, without the stop mark."""
    stops = renderer.stop
    text = decode(renderer.tokenizer, [token for token in tokens if token not in stops], skip_special_tokens=True)
    for mark in stops:
        text = text.partition(mark)[0] if isinstance(mark, str) else text
    return {"role": "assistant", "content": text}


def _keys(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> Iterator[bytes]:
    """A key for each prefix of a conversation."""
    key = hashlib.blake2b(json.dumps(list(tools), sort_keys=True, default=str).encode(), digest_size=16)
    for message in messages:
        key.update(json.dumps(_meaning(message), sort_keys=True, default=str).encode())
        yield key.digest()


def _meaning(message: Mapping[str, Any]) -> list[Any]:
    """The parts of a message that programs send back unchanged: not ids, outer white space or thinking."""
    role = message.get("role")
    try:
        [plain] = text_messages([message])
    except DataError:  # the renderer raises the error with its reason
        return [role, str(message)]
    text = split_thinking(plain["content"])[1].strip() if role == "assistant" else plain["content"]
    return [role, text, [call["function"] for call in plain.get("tool_calls") or ()]]
