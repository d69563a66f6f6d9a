"""Messages between the SDK process and its supervisor: a length, then a marshalled dictionary.

`marshal` is safe here because both ends are ours and run the same interpreter; what a sandbox prints is only ever a
`bytes` value inside a message.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

type Message = dict[str, Any]

_LENGTH_BYTES = 8


def encode(message: Message) -> bytes:
    """A message as it travels."""
    body = marshal.dumps(message)
    return len(body).to_bytes(_LENGTH_BYTES) + body


class Decoder:
    """Turns received bytes, however they were cut, back into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        self._received += data
        messages: list[Message] = []
        while len(self._received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES])
            if len(self._received) < end:
                break
            messages.append(marshal.loads(self._received[_LENGTH_BYTES:end]))
            del self._received[:end]
        return messages
