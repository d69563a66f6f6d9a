"""The conversation as clients read it: OpenAI-style messages, checked and taken apart once for every provider.

A message has `role` (system, developer, user, assistant, tool) and `content` (text or blocks of text and images). An
assistant may have `tool_calls`; each of them is answered by a tool message with its `tool_call_id`. What a provider
wants back with the next turn travels in the assistant message under the key that provider uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.chat import block_to_image_src
from ..data.shapes import ROLES, is_list, is_object
from ..data.types import Message
from ..errors import DataError, show

_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextPart:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image: inside the message (`media_type`, `data` in base64) or at an address (`url`)."""

    url: str = ""
    media_type: str = ""
    data: str = ""

    @property
    def src(self) -> str:
        """As one address, a data URL where the image is inside the message."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


type Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the assistant wants called."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it; it may be broken."""
    extra: Mapping[str, Any]
    """What its provider wants back with it."""

    def parse_arguments(self) -> dict[str, Any]:
        """The arguments as an object; text that is none is kept under `text`, because the call was made that way."""
        try:
            found: Any = json.loads(self.arguments or "{}")
        except ValueError:
            found = self.arguments
        return found if is_object(found) else {"text": self.arguments}


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A function the assistant may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message, taken apart."""

    role: str
    parts: list[Part]
    calls: list[ToolCall]
    call_id: str
    """Of the call that a tool message answers."""
    call_name: str
    message: Message

    @property
    def text(self) -> str:
        """The words of the message."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


def turns_of(messages: Sequence[Message]) -> list[ChatTurn]:
    """The conversation taken apart; says which message is wrong and why.

    A tool message without `tool_call_id` answers the first open call before it. Where there was no structured call, as
    with agents that read calls from the text, it is what the user says next.
    """
    turns: list[ChatTurn] = []
    open_calls: list[ToolCall] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"messages[{index}].role is {show(role)}. Use {', '.join(sorted(ROLES))}.")
        if role != "tool" and open_calls:
            ids = ", ".join(f"{call.id} ({call.name})" for call in open_calls)
            raise DataError(
                f"messages[{index}] comes before the tool calls {ids} are answered. Add one tool message for each of "
                "them, with its tool_call_id."
            )
        turn = _turn(role, message, index)
        if role == "tool":
            turn = _answer(turn, open_calls, index)
            open_calls = [call for call in open_calls if call.id != turn.call_id]
        # Calls stay open until the last of them is answered; only then can there be new ones.
        open_calls = open_calls or list(turn.calls)
        turns.append(turn)
    if not turns:
        raise DataError("there are no messages to answer. Give at least one.")
    return turns


def join_turns(
    turns: Sequence[ChatTurn],
    convert: Callable[[ChatTurn], list[dict[str, Any]]],
    *,
    model: str,
    speaker: str = "assistant",
    content: str = "content",
) -> list[Message]:
    """The conversation without its system messages, for APIs in which two speakers take turns; tools speak as the user.

    `convert` gives the blocks of a turn, `speaker` and `content` are what the API calls the model and those blocks.
    """
    found: list[Message] = []
    for index, turn in enumerate(turns):
        if turn.role in ("system", "developer"):
            continue
        role, blocks = speaker if turn.role == "assistant" else "user", convert(turn)
        if not blocks:
            if role == speaker:
                continue  # the model once said nothing; these APIs take no empty turn, and nothing is lost
            raise DataError(f"messages[{index}] is empty, which {model} does not take. Give it some text.")
        # Several results of tools in a row are one turn of the user.
        if found and found[-1]["role"] == role:
            found[-1][content] += blocks
        else:
            found.append({"role": role, content: blocks})
    if not found:
        raise DataError(f"there is no user message, and {model} does not answer system messages alone. Add one.")
    return found


def tool_functions(tools: Sequence[Mapping[str, Any]] | None) -> list[ToolFunction]:
    """OpenAI-style tool definitions, with or without their `function` envelope."""
    found: list[ToolFunction] = []
    for index, tool in enumerate(tools or ()):
        function: Any = tool.get("function", tool)
        name: Any = function.get("name") if is_object(function) else None
        if not isinstance(name, str) or not name:
            raise DataError(
                f"tools[{index}] is {show(dict(tool))}; it must look like "
                '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}.'
            )
        parameters: Any = function.get("parameters") or {"type": "object", "properties": {}}
        found.append(ToolFunction(name, str(function.get("description") or ""), parameters))
    return found


def calls_of(message: Message, index: int = 0) -> list[ToolCall]:
    """The calls of a message; `index` is its number in the conversation, by which errors name it."""
    given = message.get("tool_calls")
    return [_call(call, index, at) for at, call in enumerate(given if is_list(given) else [])]


def tool_call_message(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The `tool_calls` of an assistant message."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}, **call.extra}
        for call in calls
    ]


def _turn(role: str, message: Message, index: int) -> ChatTurn:
    calls = calls_of(message, index)
    call_id, name = message.get("tool_call_id"), message.get("name")
    return ChatTurn(role, _parts(message.get("content"), index), calls, str(call_id or ""), str(name or ""), message)


def _answer(turn: ChatTurn, open_calls: list[ToolCall], index: int) -> ChatTurn:
    """A tool message with the call it answers."""
    if not open_calls:
        if turn.call_id:
            raise DataError(
                f"messages[{index}] answers the tool call {show(turn.call_id)}, which is not open there. "
                "Put tool messages right after the assistant message that has the call."
            )
        return ChatTurn("user", turn.parts, [], "", "", turn.message)
    call = next((call for call in open_calls if call.id == turn.call_id), None if turn.call_id else open_calls[0])
    if call is None:
        known = ", ".join(call.id for call in open_calls)
        raise DataError(f"messages[{index}].tool_call_id is {show(turn.call_id)}; the open calls are {known}.")
    return ChatTurn("tool", turn.parts, [], call.id, call.name, turn.message)


def _call(call: Any, index: int, at: int) -> ToolCall:
    function: Any = call.get("function", call) if is_object(call) else None
    name: Any = function.get("name") if is_object(function) else None
    if not is_object(call) or not is_object(function) or not isinstance(name, str) or not name:
        where = f"messages[{index}].tool_calls[{at}]"
        raise DataError(f"{where} is {show(call)}; it must have an id and a function with name and arguments.")
    arguments: Any = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    extra = {"extra_content": call["extra_content"]} if "extra_content" in call else {}
    return ToolCall(str(call.get("id") or f"call_{index}_{at}"), name, text, extra)


def _parts(content: Any, index: int) -> list[Part]:
    if content is None or isinstance(content, str):
        return [TextPart(content)] if content else []
    if not is_list(content):
        raise DataError(f"messages[{index}].content must be text or a list of content blocks, not {show(content)}.")
    return [_part(block, f"messages[{index}].content[{at}]") for at, block in enumerate(content)]


def _part(block: Any, where: str) -> Part:
    if is_object(block):
        if block.get("type") in ("text", "input_text") and isinstance(text := block.get("text"), str):
            return TextPart(text)
        if (src := block_to_image_src(block)) is not None:
            return _image(src, where)
    raise DataError(f"{where} is {show(block)}, and only text and image blocks can be sent.")


def _image(src: str, where: str) -> ImagePart:
    if inside := _DATA_URL.fullmatch(src):
        return ImagePart(media_type=inside["media_type"], data=inside["data"])
    if src.startswith(("http://", "https://")):
        return ImagePart(url=src)
    raise DataError(
        f"{where} is an image at {show(src)}, which a server cannot open. "
        "Put the image into the message with image_base64_block, or give its https address."
    )
