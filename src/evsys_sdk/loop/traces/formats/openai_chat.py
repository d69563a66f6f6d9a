"""OpenAI's chat format: rows of `messages`, and logs of `request` with `response`, as our server writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..trace import BadRecord, Feedback, Trace, as_list, as_object, chat_messages, parse_time

NAME = "openai_chat"
_USAGE = {"input": "prompt_tokens", "output": "completion_tokens"}


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    return isinstance(record.get("messages"), list) or ("request" in record and "response" in record)


def read(record: Mapping[str, Any]) -> Iterator[Trace]:
    """The conversation in a record; of several choices the first."""
    request = response = record
    if "request" in record or "body" in record:
        request = as_object(record.get("request")) or as_object(record.get("body")) or record
    if "response" in record:
        response = as_object(record["response"])
        response = as_object(response.get("body")) or response or record
    messages = as_list(request.get("messages"))
    if choices := as_list(response.get("choices")):
        messages = [*messages, {"role": "assistant", **as_object(as_object(choices[0]).get("message"))}]
    if not messages:
        raise BadRecord("it has no messages")
    metadata = as_object(record.get("metadata")) or as_object(request.get("metadata"))
    usage = as_object(response.get("usage"))
    yield Trace(
        str(record.get("id") or response.get("id") or record.get("custom_id") or ""),
        chat_messages(messages),
        _time(record, response),
        str(metadata.get("conversation_id") or record.get("conversation_id") or ""),
        str(response.get("model") or request.get("model") or ""),
        list(_feedback(record)),
        {name: usage[key] for name, key in _USAGE.items() if isinstance(usage.get(key), int)} if usage else {},
    )


def _time(*places: Mapping[str, Any]) -> float | None:
    for name in ("time", "timestamp", "created", "created_at"):
        for place in places:
            if name in place and (seconds := parse_time(place[name])) is not None:
                return seconds
    return None


def _feedback(record: Mapping[str, Any]) -> Iterator[Feedback]:
    feedback = record.get("feedback")
    if isinstance(feedback, list):
        for entry in as_list(feedback):
            fields = as_object(entry)
            comment = fields.get("comment")
            yield Feedback(
                str(fields.get("name") or "feedback"),
                fields.get("value", fields.get("score")),
                comment if isinstance(comment, str) else "",
            )
    elif feedback is not None:
        yield Feedback("feedback", feedback)
    if record.get("reward") is not None:
        yield Feedback("reward", record["reward"])
