"""Langfuse's exports: generations as rows of JSON or CSV, any column missing, and scores that belong to them.

A row of scores is told by its `value` and the trace it names; where scores are read with the same command, they are
joined to the generations of that trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....data.types import Message
from ..trace import BadRecord, Feedback, Trace, as_list, as_object, chat_messages, parse_embedded, parse_time

NAME = "langfuse"


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    return ("trace_id" in record or "traceId" in record) and (
        "input" in record or "output" in record or is_score(record)
    )


def is_score(record: Mapping[str, Any]) -> bool:
    """Whether a row is a score and no observation."""
    return "value" in record and "name" in record and "input" not in record and _trace_id(record) != ""


def read_score(record: Mapping[str, Any]) -> tuple[str, Feedback]:
    """What a score is about, an observation or a whole trace, and the score."""
    value = record.get("string_value") or record.get("stringValue")
    value = value if value not in (None, "") else record.get("value")
    comment = record.get("comment")
    about = record.get("observation_id") or record.get("observationId") or _trace_id(record)
    return str(about), Feedback(str(record.get("name") or "score"), value, comment if isinstance(comment, str) else "")


def read(record: Mapping[str, Any]) -> Iterator[Trace]:
    """The conversation of a generation; other observations hold none."""
    if str(record.get("type") or "GENERATION").upper() != "GENERATION":
        return
    said = read_messages(record.get("input"), record.get("output"))
    if not said:
        raise BadRecord("it has neither input nor output")
    usage = as_object(record.get("usage_details") or record.get("usageDetails") or record.get("usage"))
    yield Trace(
        str(record.get("id") or ""),
        said,
        parse_time(record.get("start_time") or record.get("startTime") or record.get("timestamp")),
        str(record.get("session_id") or record.get("sessionId") or _trace_id(record)),
        str(record.get("provided_model_name") or record.get("model") or ""),
        [read_score({**as_object(one), "trace_id": _trace_id(record)})[1] for one in as_list(record.get("scores"))],
        {name: value for name in ("input", "output") if isinstance(value := usage.get(name), int)},
        (str(record.get("id") or ""), _trace_id(record)),
    )


def read_messages(asked: Any, answered: Any) -> list[Message]:
    """The conversation in an input and an output, each as it was given or as its JSON."""
    return chat_messages([*_messages(asked, "user"), *_messages(answered, "assistant")])


def _messages(value: Any, role: str) -> list[Any]:
    if isinstance(value, str):
        value = parse_embedded(value) if value[:1] in '[{"' else value
    if value in (None, "", [], {}):
        return []
    if isinstance(value, list):
        return as_list(value)
    if isinstance(value, Mapping):
        fields = as_object(value)
        if isinstance(fields.get("messages"), list):
            return as_list(fields["messages"])
        return (
            [{"role": role, **fields}]
            if "content" in fields or "tool_calls" in fields
            else [{"role": role, "content": value}]
        )
    return [{"role": role, "content": value}]


def _trace_id(record: Mapping[str, Any]) -> str:
    return str(record.get("trace_id") or record.get("traceId") or "")
