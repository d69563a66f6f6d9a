"""Messages between the SDK process and its supervisor: named fields of a few flat types, with a length limit.

A message is a length followed by its fields; a field is the length of its name, its name, a letter for its type, the
length of its value, and its value. Decoding builds only text, bytes, numbers and lists of text, up to the limit, so
that a malicious message can only be rejected.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

type Value = bool | int | float | str | bytes | list[str]
type Message = dict[str, Any]
"""Field -> `Value`; both sides know the type of each field."""

_LENGTH = 8
_MOST_FIELDS = 64
_LONGEST_NUMBER = 32
_TYPES = {b"b": bytes, b"s": str, b"l": list, b"i": int, b"f": float, b"t": bool}
_TEXT = ("utf-8", "surrogateescape")


class WireError(Exception):
    """The received data is not a valid message."""


def encode(message: Mapping[str, Value]) -> bytes:
    """Encode a message as bytes."""
    fields = [part for name, value in message.items() for part in _field(name, value)]
    return b"".join([sum(map(len, fields)).to_bytes(_LENGTH), *fields])


def _field(name: str, value: Value) -> tuple[bytes, ...]:
    key = name.encode("ascii")
    letter, content = _value(value)
    return len(key).to_bytes(1), key, letter, len(content).to_bytes(_LENGTH), content


def _value(value: Value) -> tuple[bytes, bytes]:
    match value:
        case bytes():
            return b"b", value
        case str():
            return b"s", value.encode(*_TEXT)
        # Before int, because True is one.
        case bool():
            return b"t", b"1" if value else b"0"
        case int() | float():
            return b"i" if isinstance(value, int) else b"f", repr(value).encode()
        case _:
            if any("\0" in text for text in value):
                raise ValueError("a text in a list holds a NUL character")
            return b"l", b"".join(text.encode(*_TEXT) + b"\0" for text in value)


class Decoder:
    """Decodes a stream of received bytes into messages of at most `longest` bytes."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._received = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Add received data; return the messages that it completes."""
        self._received += data
        messages: list[Message] = []
        while len(self._received) >= _LENGTH:
            length = int.from_bytes(self._received[:_LENGTH])
            if length > self._longest:
                raise WireError(f"a message of {length} bytes, where {self._longest} are allowed")
            if len(self._received) < _LENGTH + length:
                break
            messages.append(_decode(bytes(memoryview(self._received)[_LENGTH : _LENGTH + length])))
            del self._received[: _LENGTH + length]
        return messages


def _decode(body: bytes) -> Message:
    message: Message = {}
    at = 0
    try:
        while at < len(body):
            end = at + 1 + body[at]
            name, letter = body[at + 1 : end].decode("ascii"), body[end : end + 1]
            start = end + 1 + _LENGTH
            at = start + int.from_bytes(body[end + 1 : start])
            if at > len(body) or letter not in _TYPES or name in message or len(message) == _MOST_FIELDS:
                raise ValueError(f"its field {name!r} is malformed")
            message[name] = _parse(letter, body[start:at])
    except (ValueError, IndexError, OverflowError) as error:
        raise WireError(f"a message that cannot be read: {error}") from None
    return message


def _parse(letter: bytes, content: bytes) -> Value:
    match letter:
        case b"b":
            return content
        case b"s":
            return content.decode(*_TEXT)
        case b"l":
            return [text.decode(*_TEXT) for text in content.split(b"\0")[:-1]]
        case b"t":
            return content == b"1"
        case _:
            if len(content) > _LONGEST_NUMBER:
                raise ValueError("a number is too long")
            return int(content) if letter == b"i" else float(content)
