"""Regular expressions with a time limit.

A pattern such as `(a+)+$` can take centuries over one line, and a model under training will find that line. Python
cannot interrupt a match, neither from another thread (the match holds the interpreter's lock) nor by a signal (only
the main thread gets it). So matches run in their own process that ends itself when the time is up. A few such
processes are kept waiting; asking one takes a fraction of a millisecond.

    groups = await match_within(1.0, r"(\\d+) apples", "12 apples")  # ['12 apples', '12'], or None
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from ...errors import EvalError, show

type How = Literal["search", "match", "fullmatch"]

_WORKER = Path(__file__).with_name("regex_worker.py")
# No more matches at once than there are processors: others would only use up their time limits waiting for one.
_AT_ONCE = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))
_idle: list[subprocess.Popen[bytes]] = []  # without a lock: appending to a list and popping from it are one step each


class RegexTimeoutError(EvalError):
    """A match took longer than it may."""


async def match_within(
    timeout_s: float, pattern: str, text: str, *, how: How = "search", flags: int = 0
) -> list[str | None] | None:
    """The whole match and its groups, or None where there is no match; `RegexTimeoutError` when that takes too long."""
    request = {"pattern": pattern, "text": text, "how": how, "flags": int(flags), "timeout_s": timeout_s}
    # ASCII on one line: newlines and lone surrogates of a text are escaped, so that neither breaks the protocol.
    reply = await asyncio.to_thread(_ask, json.dumps(request).encode("ascii"), timeout_s)
    if reply is None:
        raise RegexTimeoutError(
            f"the regular expression {show(pattern)} was not done after {timeout_s:g} s with a text of {len(text)} "
            "characters. Write it without nested repetitions, or raise timeout_s."
        )
    if "error" in reply:
        raise EvalError(f"the regular expression {show(pattern)} cannot be used: {reply['error']}. Correct it.")
    return reply["groups"]


def check_pattern(pattern: str) -> str:
    """`pattern` itself, if it is one; for the validators of params."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{show(pattern)} is not a regular expression: {error}. Correct it.") from error
    return pattern


def _ask(request: bytes, timeout_s: float) -> dict[str, Any] | None:
    """The reply of a waiting process; None when it ran out of time, and with that ended."""
    with _AT_ONCE:
        worker = _find_worker() or _start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        began = time.monotonic()
        with contextlib.suppress(OSError):  # a broken pipe: it has ended, and there will be no reply
            worker.stdin.write(request + b"\n")
            worker.stdin.flush()
        line = worker.stdout.readline()
        if line.endswith(b"\n"):
            _idle.append(worker)
            return json.loads(line)
        took = time.monotonic() - began
        _end(worker)
    if took < timeout_s:  # it was not the time limit that ended it
        raise EvalError(f"the process that matches regular expressions ended after {took:.3f} s. Try again.")
    return None


def _find_worker() -> subprocess.Popen[bytes] | None:
    """A process that waits for work, if there is one that is still alive."""
    with contextlib.suppress(IndexError):  # another thread may take the last one
        while True:
            worker = _idle.pop()
            if worker.poll() is None:
                return worker
            _end(worker)
    return None


def _start() -> subprocess.Popen[bytes]:
    # -I and -S: nothing of the user's environment is imported, and it starts in a few milliseconds.
    command = [sys.executable, "-I", "-S", str(_WORKER)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    with contextlib.suppress(OSError):
        worker.communicate()


@atexit.register
def end_workers() -> None:
    """End the processes that wait; new ones are started when they are needed."""
    while _idle:
        _end(_idle.pop())


if hasattr(os, "register_at_fork"):  # two processes must not talk to the same worker
    os.register_at_fork(after_in_child=_idle.clear)
