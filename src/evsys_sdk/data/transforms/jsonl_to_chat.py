"""`jsonl_to_chat`: raw rows -> conversations.

    - kind: jsonl_to_chat
      params: {user_template: "Query: {query}", assistant_template: "<answer>{tool_slug}</answer>"}

The row's other fields stay beside `messages`, where later transforms find them (`dedupe` by `query`), and end up in
the typed row's metadata. What counts as a placeholder is said in `template.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import DataError
from ...protocols import Row
from ..chat import ANSWER_FIELDS, PROMPT_FIELDS, first_field, messages_of
from ..shapes import is_list, is_object
from ..template import as_text, compile_template
from ..transform import RowFunction, RowTransform, TransformConfig
from ..types import Message


class JsonlToChatConfig(TransformConfig):
    """How a raw row becomes a conversation."""

    system_prompt: str | None = None
    """First message of every conversation that does not begin with one; used as it is, without placeholders."""
    user_template: str | None = None
    """The user's turn, with {field} placeholders; by default messages, prompt, query, question, instruction ..."""
    assistant_template: str | None = None
    """The assistant's turn; by default completion, response, answer, output or solution, where a row has one."""
    keep_fields: bool = True
    """Keep the row's other fields; they end up in the typed row's metadata."""


class JsonlToChat(RowTransform[JsonlToChatConfig]):
    """Turns raw rows into conversations by templates, or by well-known field names."""

    name: ClassVar[str] = "jsonl_to_chat"
    Config = JsonlToChatConfig

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        user, assistant = self.cfg.user_template, self.cfg.assistant_template
        self._user = None if user is None else compile_template(user)
        self._assistant = None if assistant is None else compile_template(assistant)

    def begin(self) -> RowFunction:
        """The common case, two templates and nothing else, in one short function."""
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
        if self.cfg.system_prompt is not None and not _begins_with_system(messages):
            messages.insert(0, {"role": "system", "content": self.cfg.system_prompt})
        if self.cfg.keep_fields:
            return {**row, "messages": messages}
        return {"messages": messages, **{key: row[key] for key in ("metadata", "target_assistant") if key in row}}


def _default_user(row: Row) -> list[Message]:
    name = first_field(row, PROMPT_FIELDS)
    if name is None:
        if "conversations" in row:
            raise DataError("the row has 'conversations'. Use the transform sharegpt_to_chat for it.")
        raise DataError(
            f"the row has none of messages, {', '.join(PROMPT_FIELDS)}; it has: {', '.join(row) or 'nothing'}. "
            "Say how the user's turn is made with user_template, e.g. 'Query: {my_field}'."
        )
    if _is_messages(row[name]):
        return list(row[name])
    text = as_text(row[name], name)
    if name == "instruction" and row.get("input"):  # instruction datasets split the question in two
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
    """Whether a prompt or completion is itself a list of messages."""
    return is_list(value) and bool(value) and all(is_object(item) and "role" in item for item in value)


def _begins_with_system(messages: list[Message]) -> bool:
    return bool(messages) and messages[0].get("role") in ("system", "developer")
