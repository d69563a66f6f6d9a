"""A trace: one conversation with its time, model and feedback.

Its id is a hash of the producer's id or of the content, so that importing a file twice adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from ...data.types import Message

_GOOD = frozenset(
    ("up", "thumbs_up", "thumbsup", "positive", "good", "pass", "passed", "yes", "correct", "true", "like")
)
_BAD = frozenset(
    (
        "down",
        "thumbs_down",
        "thumbsdown",
        "negative",
        "bad",
        "fail",
        "failed",
        "no",
        "incorrect",
        "wrong",
        "false",
        "dislike",
    )
)
_ROLES = {"developer": "system", "human": "user", "ai": "assistant", "function": "tool"}
_JUDGED = _GOOD | _BAD
_LATEST = 4102444800.0
"""The year 2100 in seconds; larger numbers are milli-, micro- or nanoseconds."""


class BadRecord(ValueError):
    """A record that cannot be read; the reason is reported once per kind, and counted."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """One rating of an answer."""

    name: str
    value: Any
    comment: str = ""


@dataclass(slots=True)
class Trace:
    """One conversation."""

    native_id: str
    """The id at its producer; empty without one."""
    messages: list[Message]
    time: float | None = None
    """Seconds since 1970, UTC."""
    conversation: str = ""
    """Id of the conversation, which several traces may share."""
    model: str = ""
    feedback: list[Feedback] = field(default_factory=list[Feedback])
    usage: dict[str, int] = field(default_factory=dict[str, int])

    def id_in(self, source: str) -> str:
        """The id of the trace: 32 hex digits, the same for every import."""
        if self.native_id:
            content = f"{source}\0{self.native_id}".encode("utf-8", "surrogatepass")  # JSON may hold lone surrogates
        else:
            text = json.dumps([self.time, self.messages], sort_keys=True, ensure_ascii=True, default=str)
            # Two null characters, so that content cannot collide with the id of another trace.
            content = f"{source}\0\0{text}".encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class RewardRule:
    """The scale of a kind of feedback: `low` gives reward 0, `high` gives 1."""

    name: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def parse(cls, text: str) -> RewardRule:
        """From `NAME` or `NAME=LOW:HIGH`."""
        name, _, scale = text.partition("=")
        low, colon, high = scale.partition(":")
        try:
            ends = (float(low), float(high)) if colon else (None, None)
        except ValueError:
            ends = (math.nan, math.nan)
        if not name or (scale and not colon) or (ends[0] is not None and not ends[0] != ends[1] == ends[1]):
            raise BadRecord(f"--feedback takes NAME or NAME=LOW:HIGH with two different numbers (got {text!r}).")
        return cls(name, *ends)

    def apply(self, value: Any) -> float | None:
        """The reward of a value; None if it has none."""
        if self.low is None or self.high is None:
            return plain_reward(value)
        numeric = _number(value)
        if numeric is None:
            return None
        return min(1.0, max(0.0, (numeric - self.low) / (self.high - self.low)))


def plain_reward(value: Any) -> float | None:
    """The reward of values without a scale: booleans, thumbs, and numbers from 0 to 1; else None."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and (word := value.strip().lower()) in _JUDGED:
        return float(word in _GOOD)
    numeric = _number(value)
    return numeric if numeric is not None and 0 <= numeric <= 1 else None


def work_out_reward(
    feedback: Sequence[Feedback], rules: Sequence[RewardRule]
) -> tuple[float | None, list[dict[str, Any]]]:
    """The mean reward of the feedback, and each entry with its reward and scale."""
    by_name = {rule.name: rule for rule in rules}
    entries: list[dict[str, Any]] = []
    for item in feedback:
        rule = by_name.get(item.name)
        reward = rule.apply(item.value) if rule else None if by_name else plain_reward(item.value)
        entry: dict[str, Any] = {"name": item.name, "value": item.value, "reward": reward}
        if rule is not None and rule.low is not None:
            entry["scale"] = [rule.low, rule.high]
        entries.append(entry | ({"comment": item.comment} if item.comment else {}))
    rewards = [entry["reward"] for entry in entries if entry["reward"] is not None]
    return (sum(rewards) / len(rewards) if rewards else None), entries


def parse_time(value: Any) -> float | None:
    """A time in a common format as seconds since 1970; without a zone it is UTC."""
    number = _number(value)
    if number is not None:
        while number > _LATEST:
            number /= 1000
        return number if number > 0 else None
    if not isinstance(value, str) or not value:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        numeric = float(value)
    except OverflowError:
        return None
    return numeric if math.isfinite(numeric) else None


def as_object(value: Any) -> Mapping[str, Any]:
    """`value` if it is an object, or JSON text of one; else an empty one."""
    if value.__class__ is dict:  # the usual case; `isinstance` with Mapping takes ten times as long
        return value
    if value is None:
        return {}
    if isinstance(value, str) and value[:1] == "{":
        value = parse_embedded(value)
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """`value` if it is a list, or JSON text of one; else an empty list."""
    if value is None:
        return []
    if isinstance(value, str) and value[:1] == "[":
        value = parse_embedded(value)
    return cast(list[Any], value) if isinstance(value, list) else []


def parse_embedded(text: str) -> Any:
    """The value of JSON text; the text itself if it is no JSON."""
    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError:
        return text


def as_text(value: Any) -> str:
    """`value` as message text: text, the texts of content blocks, or JSON of other values."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_block_text(block) for block in cast(list[Any], value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _block_text(block: Any) -> str:
    if not isinstance(block, Mapping):
        return as_text(block)
    fields = cast(Mapping[str, Any], block)
    for name in ("text", "content"):
        if isinstance(fields.get(name), str):
            return fields[name]
    kind = fields.get("type")
    return f"[{kind}]" if isinstance(kind, str) else ""


def tool_call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call of a chat message, with its arguments as JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return {"id": str(id or ""), "type": "function", "function": {"name": str(name or ""), "arguments": text}}


def chat_messages(messages: Iterable[Any]) -> list[Message]:
    """Messages in OpenAI's format, with only the fields of chat rows."""
    converted: list[Message] = []
    for raw in messages:
        message = as_object(raw)
        role = message.get("role")
        role = _ROLES.get(cast(str, role), role)
        if role not in ("system", "user", "assistant", "tool"):
            raise BadRecord(f"a message has the role {role!r}")
        clean: Message = {"role": role, "content": as_text(message.get("content"))}
        if calls := [as_object(call) for call in as_list(message.get("tool_calls"))]:
            clean["tool_calls"] = [
                tool_call(call.get("id"), (inner := as_object(call.get("function")) or call).get("name"),
                          inner.get("arguments", inner.get("args", "")))
                for call in calls
            ]  # fmt: skip
        if role == "tool" and isinstance(message.get("tool_call_id"), str):
            clean["tool_call_id"] = message["tool_call_id"]
        converted.append(clean)
    return converted
