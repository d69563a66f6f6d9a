"""A terminal that remembers what was on it: enough of one for what the commands print, and no more.

It knows lines that wrap, carriage returns, movements of the cursor and erasing; attributes are only noted. `lines` is
everything that is on the screen or has scrolled off it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

_ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass
class Screen:
    """What is to be seen."""

    width: int = 100
    rows: list[list[str]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    styles: set[str] = field(default_factory=set[str])
    """Attributes that were asked for; empty where everything is plain."""

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            escape = _ESCAPE.match(text, at)
            if escape is not None:
                at = escape.end()
                if escape[2]:
                    self._obey(escape[1], escape[2])
                continue
            self._put(text[at])
            at += 1

    @property
    def lines(self) -> list[str]:
        shown = ["".join(row).rstrip() for row in self.rows]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._go_down()
        elif char >= " ":
            if self.column >= self.width:
                self.column = 0
                self._go_down()
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = char
            self.column += 1

    def _go_down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _obey(self, numbers: str, command: str) -> None:
        count = int(numbers) if numbers.isdecimal() else 1
        if command == "A":
            self.row = max(self.row - count, 0)
        elif command == "B":
            self.row = min(self.row + count, len(self.rows) - 1)
        elif command == "G":
            self.column = count - 1
        elif command == "K":
            self.rows[self.row] = [] if numbers == "2" else self.rows[self.row][: self.column]
        elif command == "J":
            del self.rows[self.row + 1 :]
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif command == "m" and numbers not in ("", "0"):
            self.styles.add(numbers)


@dataclass
class Session:
    """A command on a separate terminal."""

    process: subprocess.Popen[bytes]
    terminal: int
    screen: Screen
    left: bytes = b""

    def read_until(self, seen: Callable[[list[str]], bool], timeout_s: float = 60.0) -> list[str]:
        """What is on the screen once something is to be seen there; fails after a while, and at the end."""
        end = time.monotonic() + timeout_s
        while not seen(self.screen.lines):
            if time.monotonic() > end or not self._read():
                shown = "\n".join(self.screen.lines)
                raise AssertionError(f"it was never to be seen; this is what was:\n{shown}")
        return list(self.screen.lines)

    def read_to_end(self, timeout_s: float = 60.0) -> list[str]:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self._read():
            pass
        self.process.wait(timeout_s)
        return self.screen.lines

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def _read(self) -> bool:
        """Take in a little; False at the end."""
        if not select.select([self.terminal], [], [], 0.2)[0]:
            return self.process.poll() is None
        try:
            received = os.read(self.terminal, 4096)
        except OSError:  # how Linux says that no one is at the other end any more
            return False
        text = self.left + received
        whole = text.decode("utf-8", "ignore").encode()
        self.left = text[len(whole) :] if text.startswith(whole) else b""
        self.screen.write(whole.decode())
        return bool(received)


def open_session(
    arguments: Sequence[str], folder: Path, *, width: int = 100, height: int = 40, environment: Mapping[str, str] = {}
) -> Session:
    """Start `evsys` as a person would, in a window of this size."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    variables = {
        name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS", "LINES")
    }
    variables |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "evsys_sdk", *arguments],
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=variables,
        start_new_session=True, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    return Session(process, ours, Screen(width))
