"""Prompts, and the chat format of Qwen models for clients that complete raw text.

    qwen_chat_prompt("Email Ada the minutes")                     ChatML of Qwen 2 and 2.5
    qwen3_chat_template_prompt("...", enable_thinking=False)      empty thinking block: Qwen 3 answers directly

A chat client applies its model's template itself; these formats are for text-completion clients.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...data.types import Message
from ...errors import DataError, show
from ...inference.conversation import split_thinking, text_messages

DEFAULT_SYSTEM = (
    "You choose the tool that does what the user asks. Think about which one fits, then name exactly one tool by its "
    "slug, written like this: <answer>TOOL_SLUG</answer>"
)
"""Requests the slug after some reasoning."""

DEFAULT_SYSTEM_NO_THINK = (
    "You choose the tool that does what the user asks. Do not reason or explain. Reply with the slug of exactly one "
    "tool and nothing else, written like this: <answer>TOOL_SLUG</answer>"
)
"""Requests the slug without reasoning."""

END_OF_TURN = "<|im_end|>"
_EMPTY_THINKING = "<think>\n\n</think>\n\n"
_ROLES = ("system", "user", "assistant")


def conversation(question: str | Sequence[Message], system: str | None) -> list[Message]:
    """A question as messages; a conversation stays unchanged, so it never has two system prompts."""
    if not isinstance(question, str):
        return list(question)
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}]


def qwen_chat_prompt(question: str | Sequence[Message], *, system: str | None = DEFAULT_SYSTEM) -> str:
    """A question or conversation in ChatML, up to the start of the assistant's turn.

    `system=None` writes no system turn; Qwen 2.5's own template would write a default one.
    """
    return _chatml(text_messages(conversation(question, system)))


def qwen3_chat_template_prompt(
    question: str | Sequence[Message], *, system: str | None = DEFAULT_SYSTEM, enable_thinking: bool = True
) -> str:
    """The prompt of Qwen 3's template: earlier reasoning is removed, and thinking can be disabled."""
    messages = [_without_reasoning(message) for message in text_messages(conversation(question, system))]
    return _chatml(messages) + ("" if enable_thinking else _EMPTY_THINKING)


def _chatml(messages: Sequence[Message]) -> str:
    for index, message in enumerate(messages):
        if message["role"] not in _ROLES:
            raise DataError(
                f"messages[{index}].role is {show(message['role'])}; this format has {', '.join(_ROLES)}. "
                "Use a client that takes messages (prompt_format: chat)."
            )
    turns = [f"<|im_start|>{message['role']}\n{message['content']}{END_OF_TURN}\n" for message in messages]
    return "".join([*turns, "<|im_start|>assistant\n"])


def _without_reasoning(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": split_thinking(str(message["content"]))[1]}
