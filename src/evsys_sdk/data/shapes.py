"""Validation of the parts of a row: messages, content blocks, verifiers and metadata.

Every error names the value, the expectation and the place in the row; the caller adds file and line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from ..errors import MISSING, DataError, closest, show
from .types import (
    Content,
    E2BVerifier,
    InProcessVerifier,
    LLMJudgeVerifier,
    Message,
    ToolDefinition,
    VerifierPayload,
)

ROLES = ("assistant", "developer", "system", "tool", "user")

_VERIFIERS: dict[str, type[VerifierPayload]] = {
    "in_process": InProcessVerifier,
    "e2b": E2BVerifier,
    "llm_judge": LLMJudgeVerifier,
}
_REQUIRED = {"in_process": ("fn_name",), "e2b": ("dockerfile", "test_sh"), "llm_judge": ("judge_model", "rubric")}
_OPTIONAL = {"in_process": ("expected", "params"), "e2b": ("test_state_py",), "llm_judge": ()}


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a JSON value is a list, as a type guard."""
    return isinstance(value, list)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def check_messages(value: Any) -> list[Message]:
    """`value` if it is a non-empty list of messages."""
    if value.__class__ is list and value:
        try:
            for message in value:
                # Fast path for plain text; other messages are checked in detail.
                if message["role"] not in ROLES or message["content"].__class__ is not str:
                    break
            else:
                return value
        except (LookupError, TypeError):
            pass  # the detailed check raises the error
    return _messages_closely(value)


def check_content(value: Any, where: str) -> Content:
    """`value` if it is text or a list of content blocks."""
    if isinstance(value, str):
        return value
    if not is_list(value) or not value:
        raise DataError(f"'{where}' must be text or a non-empty list of content blocks, not {show(value)}.")
    for index, block in enumerate(value):
        if not is_object(block) or not isinstance(block.get("type"), str):
            raise DataError(
                f"{where}[{index}] must be a block with a 'type', as text_block() makes, not {show(block)}."
            )
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise DataError(f"{where}[{index}] is a text block without 'text': {show(block)}.")
    return value


def check_mapping(value: Any, where: str) -> dict[str, Any]:
    """`value` if it is an object; null becomes an empty one, as in exports of column stores."""
    if value is None:
        return {}
    if not is_object(value):
        raise DataError(f"'{where}' must be an object, not {show(value)}. Rename the field with rename_fields.")
    return value


def check_text(value: Any, where: str) -> str:
    """`value` if it is non-empty text."""
    if not isinstance(value, str) or not value:
        raise DataError(f"'{where}' must be non-empty text, not {show(value)}.")
    return value


def check_tools(value: Any) -> list[ToolDefinition]:
    """Tool definitions in OpenAI's form; also accepts JSON text and definitions without the outer object."""
    if value is None or value == []:
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise DataError(f"'tools' is {show(value)}, which is not JSON. Give a list of tool definitions.") from None
    if not is_list(value):
        raise DataError(f"'tools' must be a list of tool definitions, not {show(value)}.")
    return [_check_tool(tool, index) for index, tool in enumerate(value)]


def _check_tool(tool: Any, index: int) -> ToolDefinition:
    function = tool.get("function", tool) if is_object(tool) else None
    if not is_object(function) or not isinstance(name := function.get("name"), str) or not name:
        raise DataError(
            f"tools[{index}] is {show(tool)}; it must look like "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}. '
            "If the field means something else, rename it with rename_fields."
        )
    return tool if function is not tool else {"type": "function", "function": function}


def verifier_from_dict(value: Any) -> VerifierPayload:
    """The verifier spec of its JSON form."""
    if isinstance(value, InProcessVerifier | E2BVerifier | LLMJudgeVerifier):
        return value
    if not is_object(value):
        raise DataError(f"'verifier' must be an object with a 'kind', not {show(value)}.")
    kind = value.get("kind", MISSING)
    if not isinstance(kind, str) or kind not in _VERIFIERS:
        guess = closest(kind, _VERIFIERS) if isinstance(kind, str) else None
        got = "is missing" if kind is MISSING else f"is {show(kind)}"
        options = f'use one of {", ".join(_VERIFIERS)}; a function is {{"kind": "in_process", "fn_name": ...}}.'
        raise DataError(f"'verifier.kind' {got}; {f"did you mean '{guess}'?" if guess else options}")
    fields = {name: part for name, part in value.items() if name != "kind"}
    required, optional = _REQUIRED[kind], _OPTIONAL[kind]
    refuse_keys(fields, known=(*required, *optional), where="verifier.")
    for name in required:
        check_text(fields.get(name), f"verifier.{name}")
    if "params" in fields:
        fields["params"] = check_mapping(fields["params"], "verifier.params")
    if not isinstance(fields.get("test_state_py", ""), str):
        raise DataError(f"'verifier.test_state_py' must be text, not {show(fields['test_state_py'])}.")
    return _VERIFIERS[kind](**fields)


def refuse_keys(row: Mapping[str, Any], *, known: tuple[str, ...], where: str = "") -> None:
    """Refuse unknown keys of a row."""
    unknown = [key for key in row if key not in known]
    if not unknown:
        return
    key = unknown[0]
    guess = closest(str(key), [name for name in known if name not in row])
    hint = f"did you mean '{where}{guess}'?" if guess else f"known here: {', '.join(known)}."
    others = f" (also unknown: {', '.join(map(str, unknown[1:6]))})" if unknown[1:] else ""
    remedy = "" if where else " Anything else belongs under 'metadata'."
    raise DataError(f"unknown key '{where}{key}'{others}; {hint}{remedy}")


def _messages_closely(value: Any) -> list[Message]:
    if not is_list(value) or not value:
        raise DataError(f"'messages' must be a non-empty list of {{role, content}}, not {show(value)}.")
    for index, message in enumerate(value):
        if not is_object(message):
            raise DataError(f"messages[{index}] must be an object with role and content, not {show(message)}.")
        role = message.get("role")
        if role not in ROLES:
            raise DataError(_bad_role(message, index))
        content = message.get("content")
        if not isinstance(content, str):
            _check_other_content(message, content, f"messages[{index}].content")
    return value


def _bad_role(message: Message, index: int) -> str:
    role: Any = message.get("role", MISSING)
    where = f"messages[{index}].role"
    if role is MISSING:
        extra = " Rows with 'from' and 'value' are read by the transform sharegpt_to_chat." if "from" in message else ""
        return f"'{where}' is missing; the message has the keys {', '.join(map(str, message)) or 'none'}.{extra}"
    guess = closest(role, ROLES) if isinstance(role, str) else None
    hint = f"did you mean '{guess}'?" if guess else f"use one of {', '.join(ROLES)}."
    return f"'{where}' is {show(role)}; {hint}"


def _check_other_content(message: Message, content: Any, where: str) -> None:
    if content is not None:
        check_content(content, where)
    elif not message.get("tool_calls") and not message.get("function_call"):
        state: Literal["null", "missing"] = "null" if "content" in message else "missing"
        raise DataError(f"'{where}' is {state}; a message without tool_calls needs text or content blocks.")
