"""Runs tests against a policy's code, in two processes inside a sandbox that trust each other with nothing but data.

    tests.py      holds the tests, makes every comparison and reports; cannot be looked into by the other
    solution.py   holds the code under test and answers calls
    values.py     what travels between them: plain data, and numbers that stand for the solution's own objects
    check.py      which tests can be judged this way; asked before anything runs

A value that arrives at the tests is built anew from a builtin type, so an object that equals everything cannot exist
there. What is no plain data stays with the solution, and no operator of its own decides a comparison with plain data.

`program(role)` is the source of one process. It has to run on the Python of the sandbox, whichever that is.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
_FIRST_LINE = "from __future__ import annotations\n"


def program(role: str) -> str:
    """The source of `tests` or of `solution`, complete in itself."""
    values, own = ((_HERE / f"{name}.py").read_text("utf-8") for name in ("values", role))
    own = "".join(line for line in own.splitlines(keepends=True) if not line.startswith("from .values import"))
    return _FIRST_LINE + (values + own).replace(_FIRST_LINE, "")
