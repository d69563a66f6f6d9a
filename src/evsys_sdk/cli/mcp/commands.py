"""One call of a tool: the command lines it runs, each in its own process that ends with the call."""

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
"""Characters of an answer; a model's context is worth more than the rest of it."""


class ToolError(Exception):
    """A refusal, with the reason that the model reads."""


class ToolInvocation:
    """What one call of a tool has under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.cancelled = False

    def evsys(self, *arguments: str, patience_s: float = _PATIENCE_S) -> Any:
        """Run `evsys ARGUMENTS` and return the JSON that it prints; its error is raised with its reasons."""
        code, out, err = self._run(arguments, patience_s)
        if code not in (0, 2, 3):  # a finished answer may still say that an arm failed or a budget ended
            raise ToolError(_reason(out, err, code))
        try:
            return json.loads(out)
        except ValueError:
            raise ToolError(_reason(out, err, code)) from None

    def cancel(self) -> None:
        """End the process of this call, and start no other."""
        # With the lock, a process that is being started is either not started or ended.
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
                stdin=subprocess.DEVNULL,  # ours has the messages of the client
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # so that all of it can be ended
            )
        try:
            out, err = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.communicate()  # lets the system forget it, and closes its pipes
            raise ToolError(f"it took longer than {patience_s:g} s and was ended. Run it in a shell instead.") from None
        finally:
            with self._lock:
                self._process = None
        return process.returncode, out, err


def shorten(value: Any) -> Any:
    """An answer that fits: the text of it, cut where it is too long, with a word about that."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return value
    return f"{text[:_LONGEST]} … cut after {_LONGEST:,} of {len(text):,} characters. Ask for less, or read the files."


def _reason(out: str, err: str, code: int) -> str:
    """Why a command refused, with every problem of a config on its own line."""
    if said := err.strip():
        return said[-_LONGEST:]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(out)["message"])
    return f"evsys ended with code {code} and said nothing. Run it in a shell to see why."
