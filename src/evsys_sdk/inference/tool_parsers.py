"""Parsers of tool calls in sampled text, one per family of chat templates, with vLLM's `--tool-call-parser` names.

A model's parser is detected: its template writes a call, and the first parser that reads the same call back is chosen.
If any call of an answer is malformed, the answer stays text for the verifier.

    parser = PARSERS["hermes"]
    parser.parse('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')   # ("", [ParsedCall("f", {"x": 1})])
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.hermes import CALL_TAG
from ..data.shapes import is_list, is_object
from ..data.types import Message, ToolDefinition
from .conversation import held_back, join_thinking, split_thinking

_DEEPSEEK = "<\uff5ctool\u2581{}\uff5c>"
_TAGGED = re.compile(rf"<{CALL_TAG}>(.*?)</{CALL_TAG}>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)(?:\[ARGS\])?\s*(?=\{)")
_FENCED = re.compile(
    _DEEPSEEK.format("call\u2581begin")
    + r"\w+"
    + _DEEPSEEK.format("sep")
    + r"([^\n]+)\n```json\n(.*?)\n```"
    + _DEEPSEEK.format("call\u2581end"),
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call that a model wrote."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    """The id in the text; most formats have none."""


type Tools = Sequence[ToolDefinition]


@dataclass(frozen=True, slots=True)
class ToolParser:
    """Parses the calls of one family."""

    name: str
    opening: str
    """Start of a call; text before it is content."""
    read: Callable[[str, Tools], list[ParsedCall]]
    """Parses the calls from the first opening on; raises ValueError if malformed."""
    at_start: bool = False
    """Whether calls count only at the start of the answer."""

    def parse(self, text: str, tools: Tools = ()) -> tuple[str, list[ParsedCall]]:
        """The content of an answer and its calls; calls in the thinking do not count."""
        thinking, answer = split_thinking(text)
        before, mark, after = answer.partition(self.opening)
        if not mark or (self.at_start and before.strip()):
            return text, []
        try:
            calls = self.read(mark + after, tools)
        except (ValueError, SyntaxError, RecursionError):
            return text, []
        return (join_thinking(thinking, before.rstrip()).rstrip(), calls) if calls else (text, [])


def parse_message(text: str, parser: ToolParser, tools: Tools, salt: str = "") -> Message:
    """The assistant message of an answer; `salt` makes the ids of equal calls in different turns unique."""
    content, calls = parser.parse(text, tools)
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id or _make_id(salt, text, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
    return message


def find_parser(written: str, name: str, arguments: Mapping[str, Any]) -> ToolParser | None:
    """The parser that reads a known call back from the template's text."""
    for parser in PARSERS.values():
        _, mark, after = written.partition(parser.opening)
        try:
            calls = parser.read(mark + after, ()) if mark else []
        except (ValueError, SyntaxError):
            continue
        if [(call.name, call.arguments) for call in calls] == [(name, arguments)]:
            return parser
    return None


def _make_id(salt: str, text: str, index: int) -> str:
    # Mistral's templates accept only ids of nine letters and digits.
    return hashlib.blake2b(f"{salt}\0{text}\0{index}".encode()).hexdigest()[:9]


def _call_of(value: Any, key: str = "arguments") -> ParsedCall:
    arguments: Any = value.get(key, {}) if is_object(value) else None
    if not is_object(value) or not isinstance(value.get("name"), str) or not is_object(arguments):
        raise ValueError("not a call")
    return ParsedCall(value["name"], arguments, str(value.get("id") or ""))


def _hermes(text: str, tools: Tools) -> list[ParsedCall]:
    calls: list[ParsedCall] = []
    rest = text
    while (start := rest.find(f"<{CALL_TAG}>")) >= 0:
        body = rest[start + len(CALL_TAG) + 2 :].lstrip()
        value, end = json.JSONDecoder().raw_decode(body)  # an argument may contain the closing mark
        if not body[end:].lstrip().startswith(f"</{CALL_TAG}>"):
            raise ValueError("not a call")
        calls.append(_call_of(value))
        rest = body[end:]
    return calls


def _qwen3_coder(text: str, tools: Tools) -> list[ParsedCall]:
    schemas: dict[str, Any] = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    calls: list[ParsedCall] = []
    for inside in _TAGGED.findall(text):
        match = _FUNCTION.fullmatch(inside)
        if match is None:
            raise ValueError("not a call")
        properties: Any = schemas.get(match[1], {}).get("properties") or {}
        arguments = {
            name: _typed(value.removeprefix("\n").removesuffix("\n"), properties.get(name) or {})
            for name, value in _PARAMETER.findall(match[2])
        }
        calls.append(ParsedCall(match[1], arguments))
    return calls


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """A value in the type of its schema; text without a schema."""
    if schema.get("type", "string") == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _mistral(text: str, tools: Tools) -> list[ParsedCall]:
    calls: list[ParsedCall] = []
    for part in text.split("[TOOL_CALLS]")[1:]:
        if named := _NAMED.match(part):  # since v11 the name precedes the arguments
            calls.append(_call_of({"name": named[1], "arguments": _first_json(part[named.end() :])}))
            continue
        listed = _first_json(part)
        calls += [_call_of(call) for call in (listed if is_list(listed) else [listed])]
    return calls


def _first_json(text: str) -> Any:
    """The JSON value at the start of a text; an end mark may follow."""
    return json.JSONDecoder().raw_decode(text.lstrip())[0]


def _deepseek_v3(text: str, tools: Tools) -> list[ParsedCall]:
    return [
        _call_of({"name": name.strip(), "arguments": json.loads(arguments)})
        for name, arguments in _FENCED.findall(text)
    ]


def _llama3_json(text: str, tools: Tools) -> list[ParsedCall]:
    calls: list[ParsedCall] = []
    rest = text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls.append(_call_of(value, "parameters" if "parameters" in value else "arguments"))
        rest = rest[end:].lstrip("; \n")
        if rest.startswith("<|"):  # the mark that ends the turn, where it was not cut off
            break
    return calls


def _pythonic(text: str, tools: Tools) -> list[ParsedCall]:
    body = ast.parse(text[: text.rindex("]") + 1].strip(), mode="eval").body
    if not isinstance(body, ast.List) or not body.elts:
        raise ValueError("not a list of calls")
    return [_python_call(node) for node in body.elts]


def _python_call(node: ast.expr) -> ParsedCall:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call with named arguments")
    arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ParsedCall(ast.unparse(node.func), arguments)


PARSERS: dict[str, ToolParser] = {
    parser.name: parser
    for parser in (
        ToolParser("hermes", f"<{CALL_TAG}>", _hermes),
        ToolParser("qwen3_coder", f"<{CALL_TAG}>", _qwen3_coder),
        ToolParser("mistral", "[TOOL_CALLS]", _mistral),
        ToolParser("deepseek_v3", _DEEPSEEK.format("calls\u2581begin"), _deepseek_v3),
        ToolParser("llama3_json", '{"name"', _llama3_json, at_start=True),
        ToolParser("pythonic", "[", _pythonic, at_start=True),
    )
}
"""Name -> parser, in order of detection."""


def show_growing(text: str, parser: str | None, tools: Tools, stops: Sequence[str] = ()) -> str:
    """The final part of a partial text: up to anything that may become a stop or a call."""
    calls = [PARSERS[parser].opening] if tools and parser else []
    shown = text[: held_back(text, [*stops, *calls])]
    return shown.rstrip() if calls else shown  # blanks before a call are not part of the answer
