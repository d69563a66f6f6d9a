"""Runs tests against a policy's code, in two processes inside a sandbox that exchange only data.

    tests.py      holds the tests, makes every comparison and reports; the other process cannot read its memory
    proxies.py    stand-ins for the solution in the process of the tests
    solution.py   holds the code under test and answers calls
    values.py     messages between them: plain data, and numbers that refer to the solution's own objects

The tests rebuild each received value from builtin types, so an object that equals everything cannot reach them. Other
objects stay in the solution's process, and their operators never decide a comparison with plain data.

The programs must run on any Python of a sandbox, so they use nothing newer than Python 3.8.
"""

from __future__ import annotations

import functools
from pathlib import Path

_PARTS = {"tests": ("values", "proxies", "tests"), "solution": ("values", "solution")}
_OURS = ("from __future__ import", "from .values import", "from .proxies import")


@functools.cache
def program(role: str) -> str:
    """Return the source of `tests` or `solution` as one self-contained program."""
    texts = [Path(__file__).with_name(f"{part}.py").read_text("utf-8") for part in _PARTS[role]]
    lines = [line for text in texts for line in text.splitlines(keepends=True) if not line.startswith(_OURS)]
    return "from __future__ import annotations\n" + "".join(lines)
