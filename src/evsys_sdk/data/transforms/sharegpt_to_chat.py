"""`sharegpt_to_chat`: rows with `conversations: [{from, value}]` -> conversations."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ...errors import DataError, closest, show
from ...protocols import Row
from ..fields import no_such_field
from ..shapes import ROLES, is_list, is_object
from ..transform import RowTransform, TransformConfig
from ..types import Message

_ROLES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "chatgpt", "bard", "bing", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response"), "tool"),
}
"""Who speaks, as ShareGPT-like datasets say it -> role."""


class ShareGPTToChatConfig(TransformConfig):
    """Where the conversation is, and who is who."""

    field: str = Field(default="conversations", min_length=1)
    """Field that holds the list of turns."""
    roles: dict[str, str] = {}
    """More speakers -> role, for datasets with names of their own."""
    system_prompt: str | None = None
    """System message of conversations that have none, neither as a turn nor as a field `system`."""


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
        speaker = turn.get("from", turn.get("role"))
        value = turn.get("value", turn.get("content"))
        known = {**_ROLES, **self.cfg.roles}
        role = known.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            guess = closest(speaker, known) if isinstance(speaker, str) else None
            hint = f"Did you mean '{guess}'? If not, add" if guess else "Add"
            raise DataError(
                f"{where}: nobody knows the speaker {show(speaker)}. {hint} it to roles, e.g. {{Alice: user}}."
            )
        if not isinstance(value, str):
            raise DataError(f"{where}.value must be text, not {show(value)}.")
        others = {key: part for key, part in turn.items() if key not in ("from", "value", "role", "content")}
        return {"role": role, "content": value, **others}
