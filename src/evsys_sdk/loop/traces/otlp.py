"""OTLP requests -> spans, one record each: in JSON, and in protobuf without its package.

The messages of the protocol are few and frozen, so a table of their fields and a reader of the wire format are all that
it takes. What is read has the names that OTLP's JSON has; fields that are not in the table are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_core import from_json

from .trace import BadRecord, as_list, as_object

_DEEPEST: Final = 40
"""Messages inside messages; values of attributes may nest."""

type Field = tuple[str, str, bool]
"""Its name in JSON, what it is, and whether it is a list."""

_MESSAGES: Final[dict[str, dict[int, Field]]] = {
    "request": {1: ("resourceSpans", "resource_spans", True)},
    "logs_request": {1: ("resourceLogs", "resource_logs", True)},
    "resource_logs": {2: ("scopeLogs", "scope_logs", True)},
    "scope_logs": {2: ("logRecords", "log_record", True)},
    "log_record": {
        1: ("timeUnixNano", "fixed64", False),
        5: ("body", "any_value", False),
        6: ("attributes", "key_value", True),
        9: ("traceId", "hex", False),
        10: ("spanId", "hex", False),
        11: ("observedTimeUnixNano", "fixed64", False),
        12: ("eventName", "text", False),
    },
    "resource_spans": {2: ("scopeSpans", "scope_spans", True)},
    "scope_spans": {2: ("spans", "span", True)},
    "span": {
        1: ("traceId", "hex", False),
        2: ("spanId", "hex", False),
        5: ("name", "text", False),
        7: ("startTimeUnixNano", "fixed64", False),
        8: ("endTimeUnixNano", "fixed64", False),
        9: ("attributes", "key_value", True),
        11: ("events", "event", True),
    },
    "event": {
        1: ("timeUnixNano", "fixed64", False),
        2: ("name", "text", False),
        3: ("attributes", "key_value", True),
    },
    "key_value": {1: ("key", "text", False), 2: ("value", "any_value", False)},
    "any_value": {
        1: ("stringValue", "text", False),
        2: ("boolValue", "bool", False),
        3: ("intValue", "int64", False),
        4: ("doubleValue", "double", False),
        5: ("arrayValue", "array_value", False),
        6: ("kvlistValue", "kvlist", False),
        7: ("bytesValue", "hex", False),
    },
    "array_value": {1: ("values", "any_value", True)},
    "kvlist": {1: ("values", "key_value", True)},
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {"bool": _VARINT, "int64": _VARINT, "fixed64": _FIXED64, "double": _FIXED64}
"""How plain values are written; everything else is bytes with a length."""


def read_protobuf(body: bytes, *, logs: bool = False) -> dict[str, Any]:
    """A request to export spans, or log records, as OTLP's JSON would have it."""
    return _read_message(memoryview(body), "logs_request" if logs else "request", 0)


def read_json(body: bytes) -> Mapping[str, Any]:
    """A request to export something, written as JSON."""
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRecord(f"the request is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise BadRecord("the request is no object")
    return as_object(found)


def split_spans(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each span as a request of its own, so that what is wrong with one says nothing about the others."""
    for batch in as_list(request.get("resourceSpans")):
        for scope in as_list(as_object(batch).get("scopeSpans")):
            for span in as_list(as_object(scope).get("spans")):
                yield {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def split_logs(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The log records of each span as a request of its own."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for batch in as_list(request.get("resourceLogs")):
        for scope in as_list(as_object(batch).get("scopeLogs")):
            for record in as_list(as_object(scope).get("logRecords")):
                ids = tuple(str(as_object(record).get(name) or "") for name in ("traceId", "spanId"))
                key = ids if all(ids) else ("", str(len(found)))  # without a span it stands for itself
                found.setdefault(key, []).append(record)
    for records in found.values():
        yield {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def write_status(code: int, message: str) -> bytes:
    """The protocol's message of an error."""
    said = message.encode()
    return b"\x08" + _write_varint(code) + b"\x12" + _write_varint(len(said)) + said


def write_partial_success(rejected: int, message: str) -> bytes:
    """The protocol's answer when some spans were not taken."""
    inner = write_status(rejected, message)  # a number and a text, with the same two fields
    return b"\x0a" + _write_varint(len(inner)) + inner


def _read_message(data: memoryview, kind: str, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise BadRecord("the request has too many values inside values")
    fields, found, at = _MESSAGES[kind], dict[str, Any](), 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        raw, at = _read_raw(data, at, tag & 7)
        field = fields.get(tag >> 3)
        # Fields of later versions, and those that nobody here needs: they were stepped over by their length.
        if field is None:
            continue
        name, what, repeated = field
        if _WIRE.get(what, _BYTES) != tag & 7:
            raise BadRecord(f"the request is not one of OTLP: {kind} has a {name} of another type")
        value = _read_value(raw, what, depth)
        if repeated:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def _read_raw(data: memoryview, at: int, wire: int) -> tuple[int | memoryview, int]:
    if wire == _VARINT:
        return _read_varint(data, at)
    if wire in (_FIXED64, _FIXED32):
        length = 8 if wire == _FIXED64 else 4
    elif wire == _BYTES:
        length, at = _read_varint(data, at)
    else:
        raise BadRecord("the request is not protobuf")
    if at + length > len(data):
        raise BadRecord("the request is cut off")
    return data[at : at + length], at + length


def _read_value(raw: Any, what: str, depth: int) -> Any:
    match what:
        case "text":
            return bytes(raw).decode("utf-8", "replace")
        case "hex":
            return bytes(raw).hex()
        case "bool":
            return bool(raw)
        case "int64":
            # Negative numbers travel as two's complement in 64 bits.
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "fixed64":
            return int.from_bytes(raw, "little")
        case "double":
            return struct.unpack("<d", raw)[0]
        case _:
            return _read_message(raw, what, depth + 1)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:  # ten bytes hold 64 bits; more of them are no number
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise BadRecord("the request is cut off")


def _write_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
