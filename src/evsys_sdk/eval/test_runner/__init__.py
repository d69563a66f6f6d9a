"""Runs tests against a policy's code, in two processes inside a sandbox that trust each other with nothing but data.

    tests.py      holds the tests, makes every comparison and reports; cannot be looked into by the other
    proxies.py    the solution as the tests see it
    solution.py   holds the code under test and answers calls
    values.py     what travels between them: plain data, and numbers that stand for the solution's own objects

A value that arrives at the tests is built anew from a builtin type, so an object that equals everything cannot exist
there. What is no plain data stays with the solution, and its operators decide no comparison with plain data.

The programs have to run on the Python of the sandbox, whichever that is, so they use nothing newer than Python 3.8.
"""

from __future__ import annotations

import functools
from pathlib import Path

_PARTS = {"tests": ("values", "proxies", "tests"), "solution": ("values", "solution")}
_OURS = ("from __future__ import", "from .values import", "from .proxies import")


@functools.cache
def program(role: str) -> str:
    """The source of `tests` or of `solution`, complete in itself."""
    texts = [Path(__file__).with_name(f"{part}.py").read_text("utf-8") for part in _PARTS[role]]
    lines = [line for text in texts for line in text.splitlines(keepends=True) if not line.startswith(_OURS)]
    return "from __future__ import annotations\n" + "".join(lines)
