"""The contract of a renderer: conversations -> tokens with loss weights, and sampled tokens -> a message.

Training and sampling must agree token for token, so one object does both: the tokens of `render` before a supervised
turn equal `prompt` of the messages before it. The tokenizer and `model.renderer_name` select the renderer.

    renderer = get_renderer(tokenizer, config.run.model.renderer_name)
    for row in rows:
        for rendered in renderer.render(row_messages(row), "last_assistant", row.tools): ...

`Rendered` is the whole sequence, not truncated and not yet shifted by one position.
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
    """The methods of a Hugging Face tokenizer that rendering needs; `eos_token_id` is optional."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, ids: Any, skip_special_tokens: bool = ...) -> str: ...
    def apply_chat_template(self, messages: Any, tokenize: bool = ..., add_generation_prompt: bool = ...) -> Any: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sequence to train on."""

    tokens: list[int]
    """The whole sequence; it ends with the last supervised token."""
    weights: list[float]
    """1.0 for a token that carries loss, else 0.0."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.weights):
            raise DataError(f"{len(self.tokens)} tokens, but {len(self.weights)} weights. Give one weight per token.")


@dataclass(frozen=True, slots=True)
class Extension:
    """The tokens between two answers of a conversation."""

    tokens: list[int]
    as_template: bool
    """Whether the template keeps all earlier text, rather than dropping old thinking for instance."""


class Renderer(ABC):
    """Conversations -> tokens and back, for one tokenizer."""

    name: str
    """`chat_template` or for instance `cookbook:qwen3`; recorded, and compared on resume."""
    tokenizer: Tokenizer
    """The tokenizer of the model."""
    stop: list[str] | list[int]
    """Stop tokens or texts for the sampler."""
    system_prompt: str = ""
    """Prepended to conversations without a system message."""

    def with_system_prompt(self, prompt: str) -> Self:
        """A copy of the renderer with a system prompt."""
        renderer = copy(self)
        renderer.system_prompt = prompt
        return renderer

    @abstractmethod
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        supervise: Supervise = "all_assistant",
        tools: Sequence[ToolDefinition] = (),
    ) -> list[Rendered]:
        """The sequences to train on; tools that the model's format cannot show raise DataError.

        One sequence if it contains every supervised turn as it was sampled; else (a template rewrites earlier turns,
        for instance to drop their thinking) one per supervised turn.
        """

    @abstractmethod
    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolDefinition] = ()) -> list[int]:
        """The prompt tokens for the next assistant turn.

        Tools that the format cannot show are listed in the system message in Hermes form, with a warning.
        """

    @property
    def tool_parser(self) -> str | None:
        """vLLM's name of the parser for the model's tool calls; None if unknown."""
        return None

    @abstractmethod
    def extend(
        self,
        messages: Sequence[Mapping[str, Any]],
        start: int,
        sampled: Sequence[int],
        tools: Sequence[ToolDefinition] = (),
    ) -> Extension | None:
        """The tokens after the answer `messages[start - 1]`, sampled as `sampled`, up to the next answer.

        None if the format cannot write the new messages separately.
        """

    @abstractmethod
    def parse(self, tokens: Sequence[int], tools: Sequence[ToolDefinition] = ()) -> Message:
        """The assistant message of sampled tokens, without the mark that ends it.

        With `tools`, calls move from the text to `tool_calls`, with objects as arguments.
        """

    def _read_texts(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The messages as plain text, with the system prompt."""
        plain = text_messages(messages)
        if self.system_prompt and not (plain and plain[0]["role"] == "system"):
            return [{"role": "system", "content": self.system_prompt}, *plain]
        return plain


def get_renderer(tokenizer: Tokenizer, renderer_name: str | None = None) -> Renderer:
    """The renderer of a tokenizer; `renderer_name` names a tinker-cookbook renderer and is a hint.

    Without a name or without that package, or if the tokenizer supports only its own template, the tokenizer's chat
    template is used. `chat_template+hermes` is that template with tools listed in the system message.
    """
    from .renderers.chat_template import CHAT_TEMPLATE, WITH_HERMES, ChatTemplateRenderer
    from .renderers.cookbook import CookbookRenderer, cookbook_renderers, warn_not_installed

    if not renderer_name or renderer_name in (CHAT_TEMPLATE, WITH_HERMES):
        return ChatTemplateRenderer(tokenizer, own_tools=renderer_name == WITH_HERMES)
    if getattr(tokenizer, "own_template_only", False):
        _log.info("renderer '%s' is ignored: this tokenizer supports only its own chat template.", renderer_name)
        return ChatTemplateRenderer(tokenizer)
    package = cookbook_renderers()
    if package is None:
        warn_not_installed(renderer_name)
        return ChatTemplateRenderer(tokenizer)
    return CookbookRenderer(package, renderer_name, tokenizer)


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    """The exact text of `ids`."""
    # Some Hugging Face tokenizers clean up decoded text by default ("Hi ." -> "Hi.").
    exact = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}
    return cast(Any, tokenizer).decode(list(ids), skip_special_tokens=skip_special_tokens, **exact)


def preview(rendered: Rendered, tokenizer: Tokenizer) -> str:
    """Show a training sequence: lines with loss start with `+`, context lines with `|`.

    A newline of the text is shown as `↵`; a line without one continues on the next line. Every line starts with a mark,
    so no content can close a fence around the preview.
    """
    with_loss = sum(weight > 0 for weight in rendered.weights)
    lines = [f"{len(rendered.tokens)} tokens, {with_loss} with loss (lines marked +)"]
    pairs = zip(rendered.tokens, rendered.weights, strict=True)
    for trained, span in groupby(pairs, key=lambda pair: pair[1] > 0):
        text = decode(tokenizer, [token for token, _ in span])
        lines += [f"{'+' if trained else '|'} {_visible(line)}" for line in text.splitlines(keepends=True)]
    return "\n".join(lines)


def _visible(line: str) -> str:
    """A line with control characters escaped."""
    shown = "".join(
        character if character.isprintable() and character not in "\\↵" else ascii(character)[1:-1]
        for character in line.removesuffix("\n")
    )
    return f"{shown}↵" if line.endswith("\n") else shown
