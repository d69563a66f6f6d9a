"""The exact tokens of a rollout's conversations: token in, token out.

A program that talks to the policy sends the whole conversation with every request. Rendering it again would give other
tokens than those sampled (non-canonical splits, thinking that a template drops), and training would see one sequence
for each turn. The buffer keeps the tokens of each answer under the conversation that led to it, and appends the tokens
of new messages only. It is a tree: a conversation that continues no known answer (a sub-agent, a history that the
program rewrote) starts a branch.

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
"""Role of the one message of a text that is given to the model as it is, without a chat template."""


@dataclass(frozen=True, slots=True)
class BufferedPrompt:
    """What the model reads before an answer."""

    tokens: list[int]
    continues: bool
    """Whether it begins with an earlier prompt and answer, token for token."""
    as_template: bool = True
    """Whether the template itself would have kept everything before the new messages."""


@dataclass(frozen=True, slots=True)
class _Answer:
    prompt: list[int]
    sampled: list[int]
    as_template: bool


class TokenBuffer:
    """The answers of one rollout by the conversations that they end."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._answers: dict[bytes, _Answer] = {}
        self._texts: dict[str, list[int]] = {}
        """Tokens of raw texts with their continuations."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> BufferedPrompt:
        """The tokens of a conversation: those of its longest known beginning, and of the messages after it."""
        if is_raw(messages):
            text = messages[0]["content"]
            start = max(filter(text.startswith, self._texts), key=len, default="")
            rest = self._renderer.tokenizer.encode(text[len(start) :], add_special_tokens=False)
            return BufferedPrompt([*self._texts.get(start, ()), *rest], bool(start))
        known = [
            (end, answer)
            for end, key in enumerate(_keys(messages, tools), 1)
            if (answer := self._answers.get(key)) is not None and end < len(messages)
        ]
        if known:
            end, answer = known[-1]
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
        """Keep an answer."""
        if is_raw(messages):
            kept = [token for token in sampled if token not in self._renderer.stop]  # the text has no such mark
            self._texts[messages[0]["content"] + message["content"]] = [*prompt.tokens, *kept]
            return
        *_, key = _keys([*messages, message], tools)
        self._answers[key] = _Answer(prompt.tokens, list(sampled), prompt.as_template)


def is_raw(messages: Sequence[Message]) -> bool:
    """Whether a prompt is one raw text."""
    return len(messages) == 1 and messages[0].get("role") == RAW


def parse_raw(renderer: Renderer, tokens: Sequence[int]) -> Message:
    """The continuation of a raw text: everything that was sampled, without the mark that ended it."""
    stops = renderer.stop
    said = decode(renderer.tokenizer, [token for token in tokens if token not in stops], skip_special_tokens=True)
    for mark in stops:
        said = said.partition(mark)[0] if isinstance(mark, str) else said
    return {"role": "assistant", "content": said}


def _keys(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> Iterator[bytes]:
    """A key for each beginning of a conversation."""
    key = hashlib.blake2b(json.dumps(list(tools), sort_keys=True, default=str).encode(), digest_size=16)
    for message in messages:
        key.update(json.dumps(_meaning(message), sort_keys=True, default=str).encode())
        yield key.digest()


def _meaning(message: Mapping[str, Any]) -> list[Any]:
    """What a program gives back of a message: ids, blanks at the ends and thinking get lost on the way."""
    role = message.get("role")
    try:
        [plain] = text_messages([message])
    except DataError:  # the renderer says what is wrong with it
        return [role, str(message)]
    text = split_thinking(plain["content"])[1].strip() if role == "assistant" else plain["content"]
    return [role, text, [call["function"] for call in plain.get("tool_calls") or ()]]
