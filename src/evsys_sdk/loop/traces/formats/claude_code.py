"""Claude Code's session files, as versions 2.x write them: lines that are linked by `parentUuid`.

One answer of the model is several lines with the same `message.id`, one for each content block. Other kinds of lines
hold requests, costs and settings; they are passed over, and kinds that are not known are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....data.types import Message
from ..trace import BadRecord, Trace, as_list, as_object, as_text, parse_time, tool_call

NAME = "claude_code"
KNOWN = frozenset(
    (
        "user", "assistant", "attachment", "summary", "system", "queue-operation", "atis-latch", "api-request-shape",
        "api-request-blob", "api-request", "tools-used", "last-prompt", "cost-state", "file-history-snapshot",
        "progress",
    )
)  # fmt: skip


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    return record.get("type") in KNOWN and ("sessionId" in record or "parentUuid" in record or "leafUuid" in record)


def read_session(records: Sequence[Mapping[str, Any]]) -> Iterator[Trace]:
    """The conversation of a session, and of each side chain."""
    lines = [record for record in records if record.get("type") in ("user", "assistant")]
    if not lines:
        raise BadRecord("it has neither user nor assistant lines")
    for side in sorted({record.get("isSidechain") is True for record in lines}):
        own = [record for record in lines if (record.get("isSidechain") is True) == side]
        messages = _merge(own)
        if any(message["role"] == "assistant" for message in messages):
            yield _trace(own, messages, side=side)


def _trace(own: Sequence[Mapping[str, Any]], messages: list[Message], *, side: bool) -> Trace:
    session = next((str(one["sessionId"]) for one in own if one.get("sessionId")), "")
    # Of each answer only the last line counts it whole.
    usage = {
        str(said.get("id")): as_object(said.get("usage"))
        for one in own
        if one.get("type") == "assistant" and (said := as_object(one.get("message")))
    }
    counts = {
        label: sum(value for one in usage.values() if isinstance(value := one.get(name), int))
        for label, name in (("input", "input_tokens"), ("output", "output_tokens"))
    }
    models = (str(as_object(one.get("message")).get("model") or "") for one in own)
    return Trace(
        # With its last line: a session that went on would otherwise pass for the one that is known already.
        f"{session}{'/side' if side else ''}/{own[-1].get('uuid') or len(own)}",
        messages,
        next((at for one in own if (at := parse_time(one.get("timestamp"))) is not None), None),
        session,
        next((model for model in models if model), ""),
        [],
        {name: value for name, value in counts.items() if value},
    )


def _merge(lines: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Blocks of one answer as one message; results of tools as messages of their own."""
    found: list[Message] = []
    last_id = ""
    for line in lines:
        said = as_object(line.get("message"))
        content = said.get("content")
        blocks = [as_object(one) for one in as_list(content)] if isinstance(content, list) else []
        text = content if isinstance(content, str) else as_text([one for one in blocks if one.get("type") == "text"])
        for one in blocks:
            if one.get("type") == "tool_result":
                seen = {
                    "role": "tool",
                    "content": as_text(one.get("content")),
                    "tool_call_id": str(one.get("tool_use_id")),
                }
                found.append(seen)
        calls = [
            tool_call(one.get("id"), one.get("name"), one.get("input", {}))
            for one in blocks
            if one.get("type") == "tool_use"
        ]
        own_id = str(said.get("id") or "")
        if line.get("type") == "assistant" and own_id and own_id == last_id:
            found[-1]["content"] += text
        elif line.get("type") == "assistant":
            found.append({"role": "assistant", "content": text})
        elif text:
            found.append({"role": "user", "content": text})
        if calls:
            found[-1].setdefault("tool_calls", []).extend(calls)
        last_id = own_id if line.get("type") == "assistant" else ""
    return found
