"""The marks that a tokenizer's chat template writes around an assistant turn, and its handling of tools.

Templates are programs, so the marks are detected by rendering a small conversation. `ChatFormat` holds the start of a
turn, the mark that ends it, and the text between that mark and the next turn.

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
"""A placeholder text to locate in a rendered conversation."""
_TOOL: ToolDefinition = {
    "type": "function",
    "function": {"name": _FUNCTION, "description": "Weather of a city.", "parameters": _PARAMETERS},
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which a template reads messages with tool calls."""

    as_text: bool = False
    """Whether arguments are JSON text instead of objects."""
    content: str | None = ""
    """Replaces empty content of a message with calls."""

    def apply(self, message: Message) -> Message:
        """Convert the message to this form."""
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
    """A tokenizer's chat template as a function; its errors become `DataError`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Hugging Face tokenizers always have the method; `chat_template` is None without a template.
        if not hasattr(tokenizer, "apply_chat_template") or getattr(tokenizer, "chat_template", "") is None:
            raise DataError(
                f"the tokenizer ({type(tokenizer).__name__}) has no chat template to render conversations with. "
                "Set model.renderer_name (needs the package tinker-cookbook), give the tokenizer a chat_template, or "
                "use the instruction-tuned variant of the model."
            )
        self.tokenizer = tokenizer
        self.eos: int | None = getattr(tokenizer, "eos_token_id", None)
        # Some templates write the time; freeze it, so that renderings of one conversation agree.
        source, now = str(getattr(tokenizer, "chat_template", "")), datetime.now()
        fixed = _TIME.sub(lambda match: json.dumps(now.strftime(match[2])), source)
        self._options: dict[str, Any] = {} if fixed == source else {"chat_template": fixed}
        self._shown: set[tuple[str, bool]] = set()
        """Role and whether it opens the conversation, for messages that the template is known to write."""

    def __call__(
        self, messages: Sequence[Message], *, generate: bool = False, tools: Sequence[ToolDefinition] = ()
    ) -> str:
        """The conversation as text; `generate` appends the generation prompt."""
        # Tokenizers of other packages may not know the parameter.
        options = self._options | ({"tools": list(tools)} if tools else {})
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generate, **options
            )
        except (ImportError, DataError):
            raise
        except Exception as error:  # a template may raise anything; the data is the cause
            roles = ", ".join(message["role"] for message in messages) or "no messages"
            reason = str(error).rstrip(".") or type(error).__name__
            raise DataError(
                f"the chat template refuses a conversation of {roles}: {reason}. "
                "Change the messages to what the template accepts, or set model.renderer_name."
            ) from error
        return text

    def refuse_dropped(self, messages: Sequence[Message]) -> None:
        """Raise DataError for messages that the template silently omits."""
        context = list(messages)
        while context and context[-1]["role"] == "assistant":
            context.pop()
        for index, message in enumerate(context):
            place = (message["role"], index == 0)
            if message["role"] == "assistant" or place in self._shown:
                continue
            try:
                text = self([*context[:index], {**message, "content": MARK}, *context[index + 1 :]], generate=True)
            except DataError:  # rendering the conversation raises the real reason
                return
            if MARK not in text:
                raise DataError(
                    f"messages[{index}] has the role {message['role']}, which the chat template omits there. "
                    "Move its text to a message of another role."
                )
            self._shown.add(place)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes tools into the prompt."""
        with suppress(DataError):
            return self([_QUESTION], generate=True, tools=[_TOOL]) != self([_QUESTION], generate=True)
        return False

    @cached_property
    def call_form(self) -> CallForm:
        """The form in which this template reads tool calls."""
        # DeepSeek's templates concatenate arguments as text, and write calls only if the content is null.
        for content in ("", None):
            for as_text in (False, True):
                written = self._write_call(CallForm(as_text, content))
                # Reject Python's repr of a dict, which no model was trained on.
                if written is not None and _FUNCTION in written and "{'city'" not in written:
                    return CallForm(as_text, content)
        return CallForm()

    @cached_property
    def thinks_in_field(self) -> bool:
        """Whether this template reads thinking only from `reasoning_content`, not from the text."""
        answers: list[Message] = [
            {"role": "assistant", "content": _ANSWER, "reasoning_content": "hm"},
            {"role": "assistant", "content": join_thinking("hm", _ANSWER)},
        ]
        with suppress(DataError):
            field, text = (self([_QUESTION, answer]) for answer in answers)
            return field != text and field != self([_QUESTION, {"role": "assistant", "content": _ANSWER}])
        return False

    def form(self, message: Message) -> Message:
        """Convert a message to the form that this template reads."""
        if self.thinks_in_field and message["role"] == "assistant":
            thinking, answer = split_thinking(message["content"])
            message = {**message, "content": answer, "reasoning_content": thinking} if thinking else message
        return self.call_form.apply(message)

    @cached_property
    def tool_parser(self) -> ToolParser | None:
        """The parser for this template's tool calls; None if it writes none, or in an unknown format."""
        written = self._write_call(self.call_form)
        try:
            before = self([_QUESTION], generate=True)
        except DataError:
            before = ""
        return None if written is None else find_parser(written.removeprefix(before), _FUNCTION, {"city": _ANSWER})

    def _write_call(self, form: CallForm) -> str | None:
        # Mistral's templates accept only ids of nine letters and digits.
        call = {"id": "call00001", "type": "function", "function": {"name": _FUNCTION, "arguments": {"city": _ANSWER}}}
        with suppress(DataError):
            return self([_QUESTION, form.apply({"role": "assistant", "content": "", "tool_calls": [call]})])
        return None

    def end_of_mark(self, text: str) -> int | None:
        """The end offset of the first control token in a short `text`; None without one."""
        tokens = self.encode(text)
        at = next((at for at, token in enumerate(tokens, 1) if self.is_control(token)), None)
        # Decoding the token is not exact for every tokenizer.
        ends = () if at is None else range(1, len(text) + 1)
        return next((end for end in ends if self.encode(text[:end]) == tokens[:at]), None)

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`, without added special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def is_control(self, token: int) -> bool:
        """Whether a token marks structure (end of turn, end of text) rather than text."""
        if token == self.eos:
            return True
        return not decode(self.tokenizer, [token], skip_special_tokens=True) and bool(decode(self.tokenizer, [token]))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The marks around an assistant turn."""

    header: str = ""
    """Start of the turn, if the template omits it from the generation prompt."""
    indent: str = ""
    """White space between generation prompt and content, which the model samples."""
    close: str = ""
    """From the end of the content to the end of the mark that ends the turn; empty without a mark."""
    trailer: str = ""
    """Text after that mark: context for later turns, never sampled."""
    prefill: str = ""
    """An open thinking block at the end of the generation prompt, which the model continues."""
    stop_tokens: tuple[int, ...] = ()
    """Control tokens that end a turn."""
    stop_texts: tuple[str, ...] = ()
    """Stop texts, if the mark is ordinary text and not a single token."""

    @classmethod
    def of(cls, template: ChatTemplate) -> ChatFormat:
        """Detect the format of a template from a conversation of one question and one answer."""
        end_of_text = () if template.eos is None else (template.eos,)
        try:
            prompt, question = template([_QUESTION], generate=True), template([_QUESTION])
            complete = template([_QUESTION, {"role": "assistant", "content": _ANSWER}])
        except DataError:  # the template needs another kind of conversation; real ones raise its error
            return cls(stop_tokens=end_of_text)
        at = complete.rfind(_ANSWER)
        if at < 0:
            return cls(stop_tokens=end_of_text)
        lead = complete[len(prompt) : at] if complete.startswith(prompt) else ""
        header = lead if prompt == question and lead.strip() else ""
        after = complete[at + len(_ANSWER) :]
        end = template.end_of_mark(after)
        close = after.rstrip() if end is None else after[:end]
        marks = () if end is None else template.encode(close)[-1:]
        return cls(
            header=header,
            indent=lead if lead.isspace() else "",
            close=close,
            trailer=after[len(close) :],
            prefill=_open_thinking(prompt.removeprefix(question)),
            stop_tokens=(*marks, *(token for token in end_of_text if token not in marks)),
            # Stops are all texts or all tokens, so with a textual mark the end of text is a text too.
            stop_texts=(close.strip(), *(decode(template.tokenizer, [token]) for token in end_of_text))
            if close and end is None
            else (),
        )


def _open_thinking(generation_prompt: str) -> str:
    at = generation_prompt.rfind("<think>")
    return "" if at < 0 or "</think>" in generation_prompt[at:] else generation_prompt[at:]
