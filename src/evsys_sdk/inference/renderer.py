"""The contract of a renderer: conversations -> tokens with loss weights, and sampled tokens -> a message.

Training and sampling must agree token for token, so one object does both: what `render` puts before a supervised turn
is what `prompt` gives for the messages before it. Which renderer it is follows from the tokenizer and
`model.renderer_name`.

    renderer = get_renderer(tokenizer, config.run.model.renderer_name)
    for row in rows:
        for rendered in renderer.render(row_messages(row), "last_assistant", row.tools): ...

Nothing here trains, batches or truncates; `Rendered` is the whole sequence, not yet shifted by one position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, Self, cast, runtime_checkable

from ..data.types import Message, ToolDefinition
from ..errors import DataError
from ..log import get_logger
from .conversation import Supervise, row_messages, text_messages

__all__ = [
    "Extension",
    "Rendered",
    "Renderer",
    "Supervise",
    "Tokenizer",
    "decode",
    "get_renderer",
    "preview",
    "row_messages",
]

_log = get_logger(__name__)


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs; `eos_token_id` is used where there is one."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, ids: Any, skip_special_tokens: bool = ...) -> str: ...
    def apply_chat_template(self, messages: Any, tokenize: bool = ..., add_generation_prompt: bool = ...) -> Any: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sequence to train on."""

    tokens: list[int]
    """The whole sequence; it ends with the last supervised token."""
    weights: list[float]
    """One per token: 1.0 where predicting that token is trained, else 0.0."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.weights):
            raise DataError(f"{len(self.tokens)} tokens need as many weights, not {len(self.weights)}.")


@dataclass(frozen=True, slots=True)
class Extension:
    """The tokens between two answers of a conversation."""

    tokens: list[int]
    as_template: bool
    """Whether the template itself would leave everything before them as it was, or for instance drop old thinking."""


class Renderer(ABC):
    """Conversations -> tokens and back, for one tokenizer."""

    name: str
    """What was really used, `chat_template` or e.g. `cookbook:qwen3`; recorded, and compared at resume."""
    tokenizer: Tokenizer
    """The tokenizer that it renders for."""
    stop: list[str] | list[int]
    """Where a sampler must stop."""
    system_prompt: str = ""
    """Put before conversations that begin without a system message."""

    def with_system_prompt(self, prompt: str) -> Self:
        """The same renderer with a system prompt."""
        found = copy(self)
        found.system_prompt = prompt
        return found

    @abstractmethod
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        supervise: Supervise = "all_assistant",
        tools: Sequence[ToolDefinition] = (),
    ) -> list[Rendered]:
        """The sequences to train on; the model's own format shows the tools, or they are refused.

        One, when every supervised turn stands in it as it stood when it was sampled; otherwise (a template rewrites
        earlier turns, for instance to drop their thinking) one for each supervised turn.
        """

    @abstractmethod
    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolDefinition] = ()) -> list[int]:
        """What the model is given to produce the next assistant turn.

        Tools that the format does not show are listed in the system message in Hermes form, with a warning.
        """

    @property
    def tool_parser(self) -> str | None:
        """Name of the parser that reads the model's tool calls, as vLLM names it; None where none is known."""
        return None

    @abstractmethod
    def extend(
        self,
        messages: Sequence[Mapping[str, Any]],
        start: int,
        sampled: Sequence[int],
        tools: Sequence[ToolDefinition] = (),
    ) -> Extension | None:
        """What follows the answer `messages[start - 1]`, sampled as `sampled`, up to the next answer.

        None where the format cannot write the new messages by themselves.
        """

    @abstractmethod
    def parse(self, tokens: Sequence[int], tools: Sequence[ToolDefinition] = ()) -> Message:
        """The assistant message that sampled tokens stand for, without the mark that ends it.

        With `tools`, calls are taken out of the text and into `tool_calls`, with objects as arguments.
        """

    def _read_texts(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The messages as plain text, with the system prompt."""
        found = text_messages(messages)
        if self.system_prompt and not (found and found[0]["role"] == "system"):
            return [{"role": "system", "content": self.system_prompt}, *found]
        return found


def get_renderer(tokenizer: Tokenizer, renderer_name: str | None = None) -> Renderer:
    """The renderer for a tokenizer; `renderer_name` names a tinker-cookbook renderer and is a hint.

    Without a name, without that package, or for a tokenizer that only knows its own template, the tokenizer's chat
    template is used. `chat_template+hermes` is that template with tools listed in the system message.
    """
    from .renderers.chat_template import CHAT_TEMPLATE, WITH_HERMES, ChatTemplateRenderer
    from .renderers.cookbook import CookbookRenderer, cookbook_renderers, warn_not_installed

    if not renderer_name or renderer_name in (CHAT_TEMPLATE, WITH_HERMES):
        return ChatTemplateRenderer(tokenizer, own_tools=renderer_name == WITH_HERMES)
    if getattr(tokenizer, "own_template_only", False):
        _log.info("renderer '%s' is not used: this tokenizer only knows its own chat template.", renderer_name)
        return ChatTemplateRenderer(tokenizer)
    package = cookbook_renderers()
    if package is None:
        warn_not_installed(renderer_name)
        return ChatTemplateRenderer(tokenizer)
    return CookbookRenderer(package, renderer_name, tokenizer)


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    """The exact text of `ids`."""
    # Some Hugging Face tokenizers are set to tidy decoded text ("Hi ." -> "Hi."), which is not what was sampled.
    exact = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}
    return cast(Any, tokenizer).decode(list(ids), skip_special_tokens=skip_special_tokens, **exact)


def preview(rendered: Rendered, tokenizer: Tokenizer) -> str:
    """What is trained on, for people: lines with loss start with `+`, lines that are only context with `|`.

    A newline of the text is shown as `↵`; where a line ends without one, the next line continues it. Since every line
    starts with its mark, nothing inside can close a fence around the preview.
    """
    with_loss = sum(weight > 0 for weight in rendered.weights)
    lines = [f"{len(rendered.tokens)} tokens, {with_loss} with loss (lines marked +)"]
    pairs = zip(rendered.tokens, rendered.weights, strict=True)
    for trained, span in groupby(pairs, key=lambda pair: pair[1] > 0):
        text = decode(tokenizer, [token for token, _ in span])
        lines += [f"{'+' if trained else '|'} {_visible(line)}" for line in text.splitlines(keepends=True)]
    return "\n".join(lines)


def _visible(line: str) -> str:
    """A line without anything that a terminal would act on."""
    shown = "".join(
        character if character.isprintable() and character not in "\\↵" else ascii(character)[1:-1]
        for character in line.removesuffix("\n")
    )
    return f"{shown}↵" if line.endswith("\n") else shown
