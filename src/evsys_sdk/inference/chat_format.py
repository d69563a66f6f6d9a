"""What a tokenizer's chat template writes around an assistant turn, and what it does with tools.

Templates are programs; the only way to know their marks is to render a small conversation and look. `ChatFormat` is
what was seen: where a turn starts, the mark that ends it, and what follows that mark before the next turn.

    template = ChatTemplate(tokenizer)
    format = ChatFormat.of(template)      # ChatML: close "<|im_end|>", trailer "\\n"
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from ..data.types import Message, ToolDefinition
from ..errors import DataError
from .conversation import join_thinking, split_thinking
from .renderer import Tokenizer, decode
from .tool_parsers import ToolParser, find_parser

_QUESTION: Message = {"role": "user", "content": "Which city?"}
_ANSWER = "Paris"
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = "get_weather"
_TIME = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
MARK = "answer-7f3a91"
"""Stands for a text whose place in a rendered conversation is looked for."""
_TOOL: ToolDefinition = {
    "type": "function",
    "function": {"name": _FUNCTION, "description": "Weather of a city.", "parameters": _PARAMETERS},
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template wants a message that calls tools."""

    as_text: bool = False
    """Whether arguments are JSON text rather than objects."""
    content: str | None = ""
    """What stands for the content of a message that has none."""

    def apply(self, message: Message) -> Message:
        """The message in this form."""
        if not message.get("tool_calls"):
            return message
        calls = [
            {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
            if self.as_text
            else call
            for call in message["tool_calls"]
            for function in [call["function"]]
        ]
        return {**message, "content": message["content"] or self.content, "tool_calls": calls}


class ChatTemplate:
    """A tokenizer's chat template as a function; what it refuses becomes a `DataError`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Hugging Face tokenizers always have the method, and `chat_template` is None where there is nothing to apply.
        if not hasattr(tokenizer, "apply_chat_template") or getattr(tokenizer, "chat_template", "") is None:
            raise DataError(
                f"the tokenizer ({type(tokenizer).__name__}) has no chat template to render conversations with. "
                "Set model.renderer_name (needs the package tinker-cookbook), give the tokenizer a chat_template, or "
                "use the instruction-tuned variant of the model."
            )
        self.tokenizer = tokenizer
        self.eos: int | None = getattr(tokenizer, "eos_token_id", None)
        # Some templates write the time, which must not pass while the turns of a conversation are compared.
        source, now = str(getattr(tokenizer, "chat_template", "")), datetime.now()
        fixed = _TIME.sub(lambda found: json.dumps(now.strftime(found[2])), source)
        self._options: dict[str, Any] = {} if fixed == source else {"chat_template": fixed}
        self._shown: set[tuple[str, bool]] = set()
        """Roles that the template writes, and whether at the start of a conversation."""

    def __call__(
        self, messages: Sequence[Message], *, generate: bool = False, tools: Sequence[ToolDefinition] = ()
    ) -> str:
        """The conversation as text; with `generate`, up to where the assistant starts to speak."""
        # Tokenizers of other packages may not know the parameter.
        options = self._options | ({"tools": list(tools)} if tools else {})
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generate, **options
            )
        except (ImportError, DataError):
            raise
        except Exception as error:  # a template may raise anything; it is the data that it does not accept
            roles = ", ".join(message["role"] for message in messages) or "no messages"
            reason = str(error).rstrip(".") or type(error).__name__
            raise DataError(
                f"the chat template refuses a conversation of {roles}: {reason}. "
                "Change the messages to what the template accepts, or set model.renderer_name."
            ) from error
        return text

    def refuse_dropped(self, messages: Sequence[Message]) -> None:
        """Refuse messages that the template leaves out without a word, also where the assistant is to speak."""
        asked = list(messages)
        while asked and asked[-1]["role"] == "assistant":
            asked.pop()
        for index, message in enumerate(asked):
            place = (message["role"], index == 0)
            if message["role"] == "assistant" or place in self._shown:
                continue
            try:
                text = self([*asked[:index], {**message, "content": MARK}, *asked[index + 1 :]], generate=True)
            except DataError:  # the conversation itself will be refused, with its own reason
                return
            if MARK not in text:
                raise DataError(
                    f"messages[{index}] is of the role {message['role']}, which the chat template leaves out there. "
                    "Put its text into a message of another role."
                )
            self._shown.add(place)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether a prompt differs when tools are given."""
        with suppress(DataError):
            return self([_QUESTION], generate=True, tools=[_TOOL]) != self([_QUESTION], generate=True)
        return False

    @cached_property
    def call_form(self) -> CallForm:
        """How this template wants the calls of a message."""
        # Templates of DeepSeek join the arguments as text, and write calls only where the content is null.
        for content in ("", None):
            for as_text in (False, True):
                written = self._write_call(CallForm(as_text, content))
                # Not as Python writes an object, which no model was trained on.
                if written is not None and _FUNCTION in written and "{'city'" not in written:
                    return CallForm(as_text, content)
        return CallForm()

    @cached_property
    def thinks_in_field(self) -> bool:
        """Whether this template reads thinking from `reasoning_content` only, and not from the text."""
        answers: list[Message] = [
            {"role": "assistant", "content": _ANSWER, "reasoning_content": "hm"},
            {"role": "assistant", "content": join_thinking("hm", _ANSWER)},
        ]
        with suppress(DataError):
            field, text = (self([_QUESTION, answer]) for answer in answers)
            return field != text and field != self([_QUESTION, {"role": "assistant", "content": _ANSWER}])
        return False

    def form(self, message: Message) -> Message:
        """A message as this template wants it."""
        if self.thinks_in_field and message["role"] == "assistant":
            thinking, answer = split_thinking(message["content"])
            message = {**message, "content": answer, "reasoning_content": thinking} if thinking else message
        return self.call_form.apply(message)

    @cached_property
    def tool_parser(self) -> ToolParser | None:
        """What reads the calls that this template writes; None where it writes none, or in an unknown form."""
        written = self._write_call(self.call_form)
        try:
            before = self([_QUESTION], generate=True)
        except DataError:
            before = ""
        return None if written is None else find_parser(written.removeprefix(before), _FUNCTION, {"city": _ANSWER})

    def _write_call(self, form: CallForm) -> str | None:
        # Nine letters and digits, which is all that the templates of Mistral take for an id.
        call = {"id": "call00001", "type": "function", "function": {"name": _FUNCTION, "arguments": {"city": _ANSWER}}}
        with suppress(DataError):
            return self([_QUESTION, form.apply({"role": "assistant", "content": "", "tool_calls": [call]})])
        return None

    def end_of_mark(self, text: str) -> int | None:
        """Where the first control token in a short `text` ends; None when there is none."""
        tokens = self.encode(text)
        at = next((at for at, token in enumerate(tokens, 1) if self.is_control(token)), None)
        # Decoding the token would do for most tokenizers, but not all of them give back the text they were given.
        ends = () if at is None else range(1, len(text) + 1)
        return next((end for end in ends if self.encode(text[:end]) == tokens[:at]), None)

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`, and no others."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def is_control(self, token: int) -> bool:
        """Whether a token marks structure (end of turn, end of text) and is not part of the text."""
        if token == self.eos:
            return True
        return not decode(self.tokenizer, [token], skip_special_tokens=True) and bool(decode(self.tokenizer, [token]))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The marks around an assistant turn."""

    header: str = ""
    """Start of the turn, where the template does not write it although a generation prompt is asked for."""
    indent: str = ""
    """Blanks between the generation prompt and the content, which the model samples."""
    close: str = ""
    """From the content to the end of the mark that ends the turn; empty when the template writes no mark."""
    trailer: str = ""
    """After that mark; context for later turns, never sampled."""
    prefill: str = ""
    """An opened thinking block at the end of the generation prompt: the model continues from there."""
    stop_tokens: tuple[int, ...] = ()
    """Control tokens that end a turn."""
    stop_texts: tuple[str, ...] = ()
    """What to stop at where the mark is ordinary text and not its own token."""

    @classmethod
    def of(cls, template: ChatTemplate) -> ChatFormat:
        """The format of a template, seen in a conversation of one question and one answer."""
        end_of_text = () if template.eos is None else (template.eos,)
        try:
            prompt, asked = template([_QUESTION], generate=True), template([_QUESTION])
            stated = template([_QUESTION, {"role": "assistant", "content": _ANSWER}])
        except DataError:  # the template wants another kind of conversation; real ones will show what it does
            return cls(stop_tokens=end_of_text)
        at = stated.rfind(_ANSWER)
        if at < 0:
            return cls(stop_tokens=end_of_text)
        lead = stated[len(prompt) : at] if stated.startswith(prompt) else ""
        header = lead if prompt == asked and lead.strip() else ""
        after = stated[at + len(_ANSWER) :]
        end = template.end_of_mark(after)
        close = after.rstrip() if end is None else after[:end]
        marks = () if end is None else template.encode(close)[-1:]
        return cls(
            header=header,
            indent=lead if lead.isspace() else "",
            close=close,
            trailer=after[len(close) :],
            prefill=_open_thinking(prompt.removeprefix(asked)),
            stop_tokens=(*marks, *(token for token in end_of_text if token not in marks)),
            # A mark of ordinary text is no token; stops are all texts or all tokens, so the end of text is one, too.
            stop_texts=(close.strip(), *(decode(template.tokenizer, [token]) for token in end_of_text))
            if close and end is None
            else (),
        )


def _open_thinking(generation_prompt: str) -> str:
    at = generation_prompt.rfind("<think>")
    return "" if at < 0 or "</think>" in generation_prompt[at:] else generation_prompt[at:]
