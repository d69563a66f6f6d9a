"""OpenTelemetry's GenAI spans, in OTLP JSON and as the console exporter prints them.

Supports the current conventions (`gen_ai.input.messages`) and the events up to 1.36 (`gen_ai.user.message`). Spans
without a conversation are skipped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from ....data.types import Message
from ..trace import BadRecord, Feedback, Trace, as_list, as_object, as_text, chat_messages, parse_time, tool_call

NAME = "otel"

_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_USAGE = {
    "input": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
}
_CONVERSATION = ("gen_ai.conversation.id", "session.id")
_MODEL = ("gen_ai.response.model", "gen_ai.request.model")


def is_mine(record: Mapping[str, Any]) -> bool:
    """Whether a record looks like this format."""
    spans = "resourceSpans" in record or "resource_spans" in record
    return spans or ("context" in record and "attributes" in record)


def read(record: Mapping[str, Any]) -> Iterator[Trace]:
    """Every conversation in a batch of spans."""
    batches = as_list(record.get("resourceSpans")) or as_list(record.get("resource_spans"))
    if not batches:
        if "context" not in record:
            raise BadRecord("it has neither resourceSpans nor a span's context")
        yield from _read_span(record)
    for batch in batches:
        scopes = as_object(batch)
        for scope in as_list(scopes.get("scopeSpans")) or as_list(scopes.get("scope_spans")):
            for span in as_list(as_object(scope).get("spans")):
                yield from _read_span(as_object(span))


def _read_span(span: Mapping[str, Any]) -> Iterator[Trace]:
    attributes = _attributes(span.get("attributes"))
    events = [
        (str(as_object(event).get("name") or ""), _attributes(as_object(event).get("attributes")))
        for event in as_list(span.get("events"))
    ]
    # The first form counts, because code that is instrumented twice has the conversation in two forms.
    messages = _current(attributes) or _from_details(events) or _from_events(events)
    if not messages:
        return
    context = as_object(span.get("context"))
    ids = [
        _hex(context.get(f"{name}_id") or span.get(f"{name}Id") or span.get(f"{name}_id")) for name in ("trace", "span")
    ]
    yield Trace(
        "/".join(ids) if all(ids) else "",
        messages,
        parse_time(span.get("startTimeUnixNano") or span.get("start_time")),
        next((str(attributes[name]) for name in _CONVERSATION if attributes.get(name)), ""),
        next((str(attributes[name]) for name in _MODEL if attributes.get(name)), ""),
        list(_feedback(attributes, events)),
        {
            label: int(attributes[name])
            for label, names in _USAGE.items()
            for name in names
            if str(attributes.get(name, "")).isdecimal()
        },
    )


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes as a plain object: OTLP writes a list of keys with typed values."""
    if isinstance(value, Mapping):
        return dict(as_object(value))
    attributes: dict[str, Any] = {}
    for entry in as_list(value):
        fields = as_object(entry)
        key = fields.get("key")
        if isinstance(key, str):
            attributes[key] = _value(fields.get("value"))
    return attributes


def _value(value: Any) -> Any:
    for kind, inner in as_object(value).items() if not isinstance(value, str) else ():
        if kind == "intValue":
            return int(inner) if str(inner).lstrip("-").isdecimal() else inner
        if kind == "arrayValue":
            return [_value(item) for item in as_list(as_object(inner).get("values"))]
        if kind == "kvlistValue":
            return _attributes(as_object(inner).get("values"))
        return inner
    return value


def _current(attributes: Mapping[str, Any]) -> list[Message]:
    raw_messages = [
        *as_list(attributes.get("gen_ai.input.messages")),
        *as_list(attributes.get("gen_ai.output.messages")),
    ]
    system = "".join(
        as_text(as_object(part).get("content")) for part in as_list(attributes.get("gen_ai.system_instructions"))
    )
    messages: list[Message] = [{"role": "system", "content": system}] if system and raw_messages else []
    for raw in raw_messages:
        messages += _from_parts(as_object(raw))
    return messages


def _from_details(events: list[tuple[str, dict[str, Any]]]) -> list[Message]:
    details = [fields for name, fields in events if name == "gen_ai.client.inference.operation.details"]
    return _current(details[-1]) if details else []


def _from_parts(message: Mapping[str, Any]) -> Iterator[Message]:
    role, text = str(message.get("role") or ""), ""
    calls: list[dict[str, Any]] = []
    for raw in as_list(message.get("parts")):
        part = as_object(raw)
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments", "")))
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result"))
            yield {"role": "tool", "content": as_text(response), "tool_call_id": str(part.get("id") or "")}
        elif kind == "text":
            text += as_text(part.get("content"))
    if text or calls or not as_list(message.get("parts")):
        content = text or as_text(message.get("content"))
        yield from chat_messages([{"role": role, "content": content, **({"tool_calls": calls} if calls else {})}])


def _from_events(events: list[tuple[str, dict[str, Any]]]) -> list[Message]:
    messages: list[Message] = []
    for name, fields in events:
        if name in _EVENTS:
            body = as_object(fields.get("body")) or fields
            messages += chat_messages([{**body, "role": _EVENTS[name], "tool_call_id": body.get("id")}])
        elif name == "gen_ai.choice":
            stated = as_object(fields.get("body")) or fields
            if stated.get("index", 0) not in (0, "0"):
                continue
            body = as_object(stated.get("message")) or stated
            messages += chat_messages([{**body, "role": "assistant"}])
    return messages


def _feedback(attributes: Mapping[str, Any], events: list[tuple[str, dict[str, Any]]]) -> Iterator[Feedback]:
    for fields in (attributes, *(fields for _, fields in events)):
        name = fields.get("gen_ai.evaluation.name")
        if isinstance(name, str):
            value = fields.get("gen_ai.evaluation.score.value", fields.get("gen_ai.evaluation.score.label"))
            yield Feedback(name, value, as_text(fields.get("gen_ai.evaluation.explanation")))


def _hex(value: Any) -> str:
    """An id as lower-case hexadecimal digits; protobuf's JSON writes base64."""
    text = str(value or "").removeprefix("0x").lower()
    if len(text) in (16, 32) and all(letter in "0123456789abcdef" for letter in text):
        return text
    try:
        return base64.b64decode(str(value or ""), validate=True).hex()
    except (binascii.Error, ValueError):
        return text
