"""Captures the first and the last bytes of an output."""

from __future__ import annotations


class Capture:
    """Keeps about `limit` bytes of an output: its first and its last part, with a note of what is omitted.

    The end is kept because test runners and tracebacks print the result last.
    """

    def __init__(self, limit: int) -> None:
        self._head_size = (limit + 1) // 2
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Trim only when the tail has doubled, so that small writes do not copy it each time.
        if len(self._tail) > 2 * self._tail_size:
            self._trim()

    def value(self) -> bytes:
        self._trim()
        if not self._left_out:
            return bytes(self._head + self._tail)
        note = f"\n[... {self._left_out} bytes of output left out ...]\n"
        return bytes(self._head) + note.encode() + bytes(self._tail)

    def _trim(self) -> None:
        surplus = len(self._tail) - self._tail_size
        if surplus > 0:
            del self._tail[:surplus]
            self._left_out += surplus
