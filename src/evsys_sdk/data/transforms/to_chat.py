"""Raw rows -> conversations: `jsonl_to_chat` by templates, `openai_chat` and `sharegpt_to_chat` by known formats."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import Field

from ...errors import DataError, closest, show
from ...protocols import Row
from ..chat import ANSWER_FIELDS, PROMPT_FIELDS, first_field, messages_of
from ..fields import no_such_field
from ..shapes import ROLES, check_mapping, check_messages, check_tools, is_list, is_object
from ..template import as_text, compile_template
from ..transform import NoParams, RowFunction, RowTransform, TransformConfig
from ..types import Message


class JsonlToChatConfig(TransformConfig):
    """Templates of a conversation."""

    system_prompt: str | None = None
    """First message of conversations without a system message; inserted verbatim, without placeholders."""
    user_template: str | None = None
    """The user's turn, with {field} placeholders; by default messages, prompt, query, question, instruction ..."""
    assistant_template: str | None = None
    """The assistant's turn; by default completion, response, answer, output or solution, if present."""
    keep_fields: bool = True
    """Whether to keep the row's other fields, which become metadata of the typed row."""


class JsonlToChat(RowTransform[JsonlToChatConfig]):
    """Converts raw rows to conversations by templates, or by common field names.

    - kind: jsonl_to_chat
      params: {user_template: "Query: {query}", assistant_template: "<answer>{tool_slug}</answer>"}

    Other fields stay next to `messages` for later transforms (`dedupe` by `query`), and become metadata of the typed
    row. `template.py` defines placeholders.
    """

    name: ClassVar[str] = "jsonl_to_chat"
    Config = JsonlToChatConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        user, assistant = self.cfg.user_template, self.cfg.assistant_template
        self._user = None if user is None else compile_template(user)
        self._assistant = None if assistant is None else compile_template(assistant)

    def begin(self) -> RowFunction:
        """A fast path for the common case of two templates."""
        user, assistant = self._user, self._assistant
        if user is None or assistant is None or self.cfg.system_prompt is not None or not self.cfg.keep_fields:
            return self.row

        def to_chat(row: Row) -> Row:
            question, answer = {"role": "user", "content": user(row)}, {"role": "assistant", "content": assistant(row)}
            return {**row, "messages": [question, answer]}

        return to_chat

    def row(self, row: Row) -> Row:
        """The row with `messages`."""
        messages: list[Message] = []
        if self._user is not None:
            messages.append({"role": "user", "content": self._user(row)})
        elif row.get("messages") is not None:
            messages += messages_of(row)
        else:
            messages += _default_user(row)
        if self._assistant is not None:
            messages.append({"role": "assistant", "content": self._assistant(row)})
        elif self._user is not None or row.get("messages") is None:
            messages += _default_assistant(row)
        has_system = bool(messages) and messages[0].get("role") in ("system", "developer")
        if self.cfg.system_prompt is not None and not has_system:
            messages.insert(0, {"role": "system", "content": self.cfg.system_prompt})
        if self.cfg.keep_fields:
            return {**row, "messages": messages}
        typed = ("metadata", "target_assistant", "tools")
        return {"messages": messages, **{key: row[key] for key in typed if key in row}}


def _default_user(row: Row) -> list[Message]:
    name = first_field(row, PROMPT_FIELDS)
    if name is None:
        if "conversations" in row:
            raise DataError("the row has 'conversations'. Use the transform sharegpt_to_chat for it.")
        raise DataError(
            f"the row has none of messages, {', '.join(PROMPT_FIELDS)}; it has: {', '.join(row) or 'nothing'}. "
            "Set user_template for the user's turn, e.g. 'Query: {my_field}'."
        )
    if _is_messages(row[name]):
        return list(row[name])
    text = as_text(row[name], name)
    if name == "instruction" and row.get("input"):  # instruction datasets split the question into instruction and input
        text = f"{text}\n\n{as_text(row['input'], 'input')}"
    return [{"role": "user", "content": text}]


def _default_assistant(row: Row) -> list[Message]:
    name = first_field(row, ANSWER_FIELDS)
    if name is None:
        return []
    if _is_messages(row[name]):
        return list(row[name])
    return [{"role": "assistant", "content": as_text(row[name], name)}]


def _is_messages(value: Any) -> bool:
    """Whether a prompt or completion is a list of messages."""
    return is_list(value) and bool(value) and all(is_object(item) and "role" in item for item in value)


class OpenAIChat(RowTransform[NoParams]):
    """Reads OpenAI fine-tuning rows, with tools, older function calls and weights.

    Tool definitions and the older `functions` become `tools` of the row, which the model's chat template writes into
    the prompt. The older `function_call` and `role: function` become tool calls and tool results. A turn with
    `weight: 0` stays in the conversation without loss.
    """

    name: ClassVar[str] = "openai_chat"
    Config = NoParams

    def row(self, row: Row) -> Row:
        """The row as a conversation."""
        messages = check_messages(_modern(messages_of(row)))
        metadata = check_mapping(row.get("metadata"), "metadata")
        others = {key: value for key, value in row.items() if key not in ("messages", "tools", "functions", "metadata")}
        tools = [*check_tools(row.get("tools")), *check_tools(row.get("functions"))]
        return {"messages": messages, "metadata": metadata, **({"tools": tools} if tools else {}), **others}


def _modern(messages: list[Message]) -> list[Message]:
    """The messages with tool calls in place of function calls."""
    modern: list[Message] = []
    call_id = ""
    for index, message in enumerate(messages):
        call = message.get("function_call")
        if call:
            call_id = f"call_{index}"  # function calls had no id; a result belongs to the last call
            rest = {key: value for key, value in message.items() if key != "function_call"}
            calls = [{"id": call_id, "type": "function", "function": call}]
            message = {"content": None, **rest, "tool_calls": calls}
        elif message.get("role") == "function":
            if not call_id:
                raise DataError(f"messages[{index}] is the result of a function that no earlier message calls.")
            message = {**message, "role": "tool", "tool_call_id": call_id}
        modern.append(message)
    return modern


_ROLES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "chatgpt", "bard", "bing", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response"), "tool"),
}
"""Speaker name in ShareGPT-like datasets -> role."""


class ShareGPTToChatConfig(TransformConfig):
    """Field and roles of a conversation."""

    field: str = Field(default="conversations", min_length=1)
    """Field that holds the list of turns."""
    roles: dict[str, str] = {}
    """Additional speaker names -> role."""
    system_prompt: str | None = None
    """System message of conversations without one, as a turn or as a field `system`."""


class ShareGPTToChat(RowTransform[ShareGPTToChatConfig]):
    """Reads ShareGPT rows: a list of turns with `from` and `value`."""

    name: ClassVar[str] = "sharegpt_to_chat"
    Config = ShareGPTToChatConfig

    def row(self, row: Row) -> Row:
        """The row as a conversation."""
        field = self.cfg.field
        if field not in row:
            raise no_such_field(field, row)
        turns = row[field]
        if not is_list(turns) or not turns:
            raise DataError(f"'{field}' must be a non-empty list of turns, not {show(turns)}.")
        messages = [self._message(turn, f"{field}[{index}]") for index, turn in enumerate(turns)]
        system = row.get("system") or self.cfg.system_prompt
        if isinstance(system, str) and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return {"messages": messages, **{key: value for key, value in row.items() if key not in (field, "system")}}

    def _message(self, turn: Any, where: str) -> Message:
        if not is_object(turn):
            raise DataError(f"{where} must be an object with from and value, not {show(turn)}.")
        speaker = turn.get("from", turn.get("role"))  # some files use role and content
        value = turn.get("value", turn.get("content"))
        roles = {**_ROLES, **self.cfg.roles}
        role = roles.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            guess = closest(speaker, roles) if isinstance(speaker, str) else None
            hint = f"Did you mean '{guess}'? If not, add" if guess else "Add"
            reason = f"unknown speaker {show(speaker)}"
            raise DataError(f"{where}: {reason}. {hint} it to roles, e.g. {{Alice: user}}.")
        if not isinstance(value, str):
            raise DataError(f"{where}.value must be text, not {show(value)}.")
        others = {key: part for key, part in turn.items() if key not in ("from", "value", "role", "content")}
        if speaker == "function_call":
            return {"role": role, "content": "", "tool_calls": _read_calls(value, f"{where}.value"), **others}
        return {"role": role, "content": value, **others}


def _read_calls(text: str, where: str) -> list[dict[str, Any]]:
    """The calls that a `function_call` turn writes as JSON, one object or a list."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    calls: list[Any] = value if is_list(value) else [value]
    if not calls or not all(is_object(call) and isinstance(call.get("name"), str) for call in calls):
        raise DataError(f'{where} is {show(text)}; a function_call is JSON like {{"name": ..., "arguments": {{...}}}}.')
    return [{"type": "function", "function": call} for call in calls]
