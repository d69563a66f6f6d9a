"""Run the command lines of a tool call, each in a process that ends with the call."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

from ...processes import kill_group

_PATIENCE_S = 300.0
_LONGEST = 40_000
"""Characters of an answer, to save the model's context."""


class ToolError(Exception):
    """An error with a message for the model."""


class ToolInvocation:
    """The running process of a tool call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.cancelled = False

    def evsys(self, *arguments: str, patience_s: float = _PATIENCE_S) -> Any:
        """Run `evsys ARGUMENTS` and return its JSON; ToolError with its message if it fails."""
        code, out, err = self._run(arguments, patience_s)
        if code not in (0, 2, 3):  # 2 and 3 have an answer: an arm failed, or a budget ended
            raise ToolError(_reason(out, err, code))
        try:
            return json.loads(out)
        except ValueError:
            raise ToolError(_reason(out, err, code)) from None

    def cancel(self) -> None:
        """Kill the process of this call, and start no other."""
        # Under the lock, so that a process that is being started is killed too.
        with self._lock:
            self.cancelled = True
            if self._process is not None:
                kill_group(self._process.pid)

    def _run(self, arguments: tuple[str, ...], patience_s: float) -> tuple[int, str, str]:
        with self._lock:
            if self.cancelled:
                raise ToolError("the call was cancelled.")
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "evsys_sdk", *arguments],
                stdin=subprocess.DEVNULL,  # our stdin has the client's messages
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # to kill the whole process group
            )
        try:
            out, err = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.communicate()  # reaps the process and closes its pipes
            raise ToolError(
                f"the command took longer than {patience_s:g} s and was killed. Run it in a shell instead."
            ) from None
        finally:
            with self._lock:
                self._process = None
        return process.returncode, out, err


def shorten(value: Any) -> Any:
    """An answer, as cut text if it is too long."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return value
    return f"{text[:_LONGEST]} … cut after {_LONGEST:,} of {len(text):,} characters. Ask for less, or read the files."


def _reason(out: str, err: str, code: int) -> str:
    """The error message of a failed command."""
    if message := err.strip():
        return message[-_LONGEST:]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(out)["message"])
    return f"evsys exited with code {code} and no message. Run it in a shell to see why."
