"""Codex's rollout files: an envelope with `payload` (since 0.30), or bare items as older versions wrote them.

Only `response_item` tells the conversation; `event_msg` repeats it. What the program itself puts into the user's mouth
(its instructions and the environment it found) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....data.types import Message
from ..trace import BadRecord, Trace, as_list, as_object, as_text, parse_time, tool_call

NAME = "codex"
KNOWN = frozenset(
    ("session_meta", "event_msg", "response_item", "world_state", "turn_context", "token_usage_record", "compacted")
)
_ITEMS = frozenset(("message", "function_call", "function_call_output", "reasoning", "local_shell_call"))
_NOT_THE_USERS = ("<environment_context>", "<user_instructions>", "<permissions", "# AGENTS.md")


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    if record.get("type") in KNOWN and isinstance(record.get("payload"), Mapping):
        return True
    return record.get("type") in _ITEMS and ("role" in record or "call_id" in record or "encrypted_content" in record)


def read_session(records: Sequence[Mapping[str, Any]]) -> Iterator[Trace]:
    """The conversation of a rollout."""
    session, model, when = "", "", None
    messages: list[Message] = []
    usage: dict[str, int] = {}
    for record in records:
        payload = as_object(record.get("payload"))
        item = payload if record.get("type") == "response_item" else None if payload else record
        if record.get("type") == "session_meta":
            session = str(payload.get("id") or payload.get("session_id") or session)
        model = str(payload.get("model") or model)
        when = when if when is not None else parse_time(record.get("timestamp") or payload.get("timestamp"))
        if record.get("type") == "token_usage_record":
            _count(usage, as_object(payload.get("usage")))
        _add(messages, as_object(item))
    if not messages:
        raise BadRecord("it has no conversation")
    # With its length: a session that went on would otherwise be taken for the shorter one that is known already.
    yield Trace(session and f"{session}/{len(records)}", messages, when, session, model, usage=usage)


def _count(usage: dict[str, int], told: Mapping[str, Any]) -> None:
    """Add the tokens of one request."""
    for name, key in (("input", "input_tokens"), ("output", "output_tokens")):
        if isinstance(count := told.get(key), int):
            usage[name] = usage.get(name, 0) + count


def _add(messages: list[Message], item: Mapping[str, Any]) -> None:
    match item.get("type"):
        case "message":
            text = as_text(as_list(item.get("content")) or item.get("content"))
            role = item.get("role")
            if role in ("user", "assistant") and text and not text.lstrip().startswith(_NOT_THE_USERS):
                messages.append({"role": role, "content": text})
        case "function_call" | "local_shell_call":
            call = tool_call(
                item.get("call_id"), item.get("name") or "shell", item.get("arguments") or item.get("action") or {}
            )
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = item.get("output")
            seen = as_object(output).get("content", output)
            messages.append({"role": "tool", "content": as_text(seen), "tool_call_id": str(item.get("call_id") or "")})
        case _:
            pass
