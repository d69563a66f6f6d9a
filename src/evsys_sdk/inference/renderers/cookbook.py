"""Rendering with tinker-cookbook, which has exact formats of many model families.

The package is optional and heavy (it imports torch), so it is imported only when `model.renderer_name` needs it.
Added here: one sequence for all turns where possible, thinking as text, and errors with a remedy.

    renderer = CookbookRenderer(cookbook_renderers(), "qwen3", tokenizer)
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

from ...data.types import Message, ToolDefinition
from ...errors import ConfigError, DataError, EvsysError, Problem, closest
from ...log import get_logger
from ..control_tokens import ControlTokens, GuardedTokenizer
from ..conversation import (
    Supervise,
    find_supervised_turns,
    join_thinking,
    split_thinking,
    text_messages,
    without_empty_thinking,
)
from ..renderer import Extension, Rendered, Renderer, Tokenizer

_log = get_logger(__name__)

_PASSED_ON = ("role", "tool_call_id", "name")


def cookbook_renderers() -> Any:
    """The module `tinker_cookbook.renderers`; None if it cannot be imported."""
    try:
        return import_module("tinker_cookbook.renderers")
    except ImportError as error:
        _log.debug("tinker_cookbook cannot be imported: %s", error)
        return None


@cache
def warn_not_installed(renderer_name: str) -> None:
    """Warn once that a named renderer is unavailable, and name its replacement."""
    _log.warning(
        "renderer '%s' needs the package tinker-cookbook, which cannot be imported; the tokenizer's own chat "
        "template is used. Install it with: pip install tinker-cookbook, or remove model.renderer_name.",
        renderer_name,
    )


class CookbookRenderer(Renderer):
    """Renders with a named tinker-cookbook renderer."""

    def __init__(self, package: Any, renderer_name: str, tokenizer: Tokenizer) -> None:
        self.name = f"cookbook:{renderer_name}"
        self._package = package
        self.tokenizer = tokenizer
        self._controls = ControlTokens(tokenizer)
        self._renderer, self.stop = _build(package, renderer_name, tokenizer)
        self._knows_thinking = self._accepts_thinking()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        supervise: Supervise = "all_assistant",
        tools: Sequence[ToolDefinition] = (),
    ) -> list[Rendered]:
        conversation = self._controls.guard(self._read_texts(messages))
        supervised_turns = find_supervised_turns(conversation, supervise)
        examples: list[Rendered] = []
        with self._refusals():
            prefix, rest = self._offer(conversation, tools)
            first = len(conversation) - len(rest)
            converted = [*prefix, *(self._convert(message) for message in rest)]
            for index in supervised_turns:
                upto = len(prefix) + index - first + 1
                examples.append(self._example(converted[:upto]))
                if "tool_calls" in converted[upto - 1]:
                    self._refuse_lost_calls(converted[:upto], examples[-1], index)
        return merge_examples(examples)

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolDefinition] = ()) -> list[int]:
        conversation = self._controls.guard(self._read_texts(messages))
        with self._refusals():
            prefix, rest = self._offer(conversation, tools)
            converted = [*prefix, *(self._convert(message) for message in rest)]
            return list(self._renderer.build_generation_prompt(converted).to_ints())

    def _offer(self, messages: list[Message], tools: Sequence[ToolDefinition]) -> tuple[list[Any], list[Message]]:
        """The messages that show tools, replacing the system message, and the remaining messages."""
        if not tools:
            return [], messages
        system = messages[:1] if messages[0]["role"] == "system" else []
        functions = [tool["function"] for tool in self._controls.guard_tools(tools)]
        try:
            shown = self._renderer.create_conversation_prefix_with_tools(functions, *(m["content"] for m in system))
        except NotImplementedError:
            raise DataError(
                f"renderer {self.name} does not write tools, but {len(tools)} are given. Name a renderer that does, or "
                "remove the tools."
            ) from None
        return list(shown), messages[len(system) :]

    def extend(
        self,
        messages: Sequence[Mapping[str, Any]],
        start: int,
        sampled: Sequence[int],
        tools: Sequence[ToolDefinition] = (),
    ) -> Extension | None:
        answer = {**messages[start - 1], "content": "x"}
        for number, last in enumerate(
            (messages[start - 1], answer)
        ):  # a placeholder answer may leave history unchanged
            before = self.render([*messages[: start - 1], last], "last_assistant", tools)[0].tokens
            whole = self.prompt([*messages[: start - 1], last, *messages[start:]], tools)
            if whole[: len(before)] == before:
                end = [] if sampled and sampled[-1] in self.stop else [mark for mark in self.stop[:1] if mark in before]
                return Extension([*end, *whole[len(before) :]], as_template=number == 0)
        return None

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolDefinition] = ()) -> Message:
        end = next((at for at, token in enumerate(tokens, 1) if token in self.stop), len(tokens))
        with self._refusals():
            message, _ = self._renderer.parse_response(list(tokens[:end]))
        return _plain_message(message)

    def _example(self, converted: list[Message]) -> Rendered:
        """The conversation with loss on its last message."""
        last = self._package.TrainOnWhat.LAST_ASSISTANT_MESSAGE
        return _trim(*self._renderer.build_supervised_example(converted, train_on_what=last))

    def _refuse_lost_calls(self, converted: list[Message], example: Rendered, index: int) -> None:
        without = {key: value for key, value in converted[-1].items() if key != "tool_calls"}
        if self._example([*converted[:-1], without]) == example:
            raise DataError(
                f"messages[{index}] has tool_calls, which renderer {self.name} does not write. "
                "Name a renderer that does, or write the calls into the content."
            )

    def _convert(self, message: Message) -> Message:
        """A message in the package's types."""
        converted = {key: message[key] for key in _PASSED_ON if message.get(key) is not None}
        converted["content"] = message["content"]
        if message["role"] == "assistant":
            converted["content"] = self._content(message)
        if message.get("tool_calls"):
            converted["tool_calls"] = [self._tool_call(call) for call in message["tool_calls"]]
        return converted

    def _content(self, message: Message) -> Any:
        """Thinking separate from the answer, for renderers that treat them differently."""
        thinking, answer = split_thinking(message["content"])
        thinking = message.get("reasoning_content") or thinking
        if not thinking or not self._knows_thinking:
            return join_thinking(thinking, answer)
        return [_write_thinking(thinking), {"type": "text", "text": answer}]

    def _tool_call(self, call: Mapping[str, Any]) -> Any:
        function = call.get("function", call)
        arguments = function.get("arguments", {})
        body = {"name": function.get("name"), "arguments": json.dumps(arguments, ensure_ascii=False)}
        return self._package.ToolCall.model_validate({"id": call.get("id"), "function": body})

    def _accepts_thinking(self) -> bool:
        turn = {"role": "assistant", "content": [_write_thinking("b"), {"type": "text", "text": "c"}]}
        question = {"role": "user", "content": "a"}
        try:
            self._renderer.build_generation_prompt([question, turn, question])
        except Exception:  # any failure means that this renderer reads plain text only
            return False
        return True

    @contextmanager
    def _refusals(self) -> Generator[None]:
        try:
            yield
        except EvsysError:
            raise
        except Exception as error:  # the package raises its own errors, pydantic's and assertions for bad conversations
            raise DataError(
                f"renderer {self.name} refuses this conversation: {_reason(error)}. Change the "
                "messages, name another renderer, or remove model.renderer_name to use the tokenizer's own chat "
                "template."
            ) from error


def merge_examples(examples: Sequence[Rendered]) -> list[Rendered]:
    """One sequence if each example is a prefix of the next; else the examples unchanged."""
    for example, following in pairwise(examples):
        if following.tokens[: len(example.tokens)] != example.tokens:
            return list(examples)
    weights = [0.0] * len(examples[-1].tokens)
    for example in examples:
        weights[: len(example.weights)] = map(max, weights, example.weights)
    return [Rendered(examples[-1].tokens, weights)]


def _build(package: Any, renderer_name: str, tokenizer: Tokenizer) -> tuple[Any, list[str] | list[int]]:
    """The named renderer and its stop sequences."""
    try:
        name = getattr(tokenizer, "name_or_path", "")
        renderer = package.get_renderer(renderer_name, GuardedTokenizer(tokenizer), model_name=name)
        return renderer, list(renderer.get_stop_sequences())
    except Exception as error:  # an unknown name, or a tokenizer without the tokens the renderer relies on
        known = list_names(package)
        if renderer_name in known or not known:
            message = f"the renderer cannot be used with this tokenizer ({type(tokenizer).__name__}): {_reason(error)}"
            hint = "Name another one, or none to use the tokenizer's own chat template."
        else:
            guess = closest(renderer_name, known)
            message = "tinker-cookbook has no such renderer" + (f"; did you mean '{guess}'?" if guess else "")
            hint = f"Known: {', '.join(known)}. Without a name the tokenizer's own chat template is used."
        raise ConfigError(Problem(message, path="run.model.renderer_name", value=renderer_name, hint=hint)) from error


def list_names(package: Any) -> list[str]:
    """Names that `get_renderer` accepts, parsed from its source, because the package has no list of them."""
    import inspect

    try:
        built_in = re.findall(r'name == "([^"]+)"', inspect.getsource(package.get_renderer))
    except (OSError, TypeError):
        built_in = []
    return sorted({*built_in, *package.get_registered_renderer_names()})


def _trim(model_input: Any, weights: Any) -> Rendered:
    """Tokens and weights up to the last token that carries loss."""
    tokens, values = list(model_input.to_ints()), [float(weight) for weight in weights.tolist()]
    if not any(values):
        raise DataError("an assistant turn renders to no trainable token. Fill its content or drop the turn.")
    end = max(at for at, weight in enumerate(values, 1) if weight)
    return Rendered(tokens[:end], values[:end])


def _plain_message(message: Mapping[str, Any]) -> Message:
    content: Any = message["content"]
    if not isinstance(content, str):
        parts = cast(Sequence[Mapping[str, Any]], content)
        content = "".join(join_thinking(part["thinking"], "") if "thinking" in part else part["text"] for part in parts)
    # Malformed calls stay in the text for the verifier.
    for call in message.get("unparsed_tool_calls", ()):
        content += "" if call.raw_text in content else call.raw_text
    plain_message: Message = {"role": "assistant", "content": without_empty_thinking(content)}
    if message.get("tool_calls"):
        calls = [call.model_dump(exclude_none=True) for call in message["tool_calls"]]
        with suppress(DataError):  # arguments as objects; invalid ones stay text
            [plain] = text_messages([{**plain_message, "tool_calls": calls}])
            calls = plain["tool_calls"]
        plain_message["tool_calls"] = calls
    return plain_message


def _write_thinking(thinking: str) -> dict[str, str]:
    return {"type": "thinking", "thinking": thinking}


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
