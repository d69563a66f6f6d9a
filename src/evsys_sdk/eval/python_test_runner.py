"""Runs tests against a policy's code; copied into a sandbox and started there as a script, never on this machine.

Its only argument is a JSON file with `secret`, `code`, `tests` and `cwd`. The file is gone before the code runs, and
every line of the report begins with the secret, so that code which prints, exits early or exits with 0 passes nothing.
This keeps accidents and simple tricks out; code that searches the interpreter's memory for the secret can still cheat.

It has to run on the Python of the sandbox, whichever that is, so it uses nothing new.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main(path: str) -> None:
    """Report `ready`, then `pass` or `fail` with a reason for each test."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    os.unlink(path)
    report = _reporter(job["secret"])
    report("ready")
    os.chdir(job["cwd"] or ".")
    sys.path.insert(0, os.getcwd())
    space: dict[str, Any] = {"__name__": "solution"}
    broken = _failure(_run, job["code"], "solution.py", space)
    for number, test in enumerate(job["tests"]):
        wrong = broken or _failure(_run_test, test, space)
        report("fail" if wrong else "pass", number, wrong[:500])


def _reporter(secret: str) -> Callable[..., None]:
    """Writes to what is stdout now; whatever else is printed from here on goes nowhere."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def report(*words: object) -> None:
        line = " ".join([secret, *map(str, words)]).replace("\n", " ")
        os.write(channel, line.encode("utf-8", "replace") + b"\n")

    return report


def _failure(run: Callable[..., None], *given: Any) -> str:
    """Why something failed, or nothing; an early exit is a failure too."""
    try:
        run(*given)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _run(source: str, name: str, space: dict[str, Any]) -> None:
    exec(compile(source, name, "exec"), space)


def _run_test(test: str, solution: dict[str, Any]) -> None:
    """Run the statements of a test, then the test functions and test cases that it defines."""
    space = dict(solution)
    _run(test, "test.py", space)
    unittest = sys.modules.get("unittest")  # there, if the test uses it; importing it here would take longer than most
    for name, found in list(space.items()):
        if name in solution and found is solution[name]:
            continue
        if unittest and isinstance(found, type) and issubclass(found, unittest.TestCase):
            outcome = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(found).run(outcome)
            if not outcome.wasSuccessful():
                raise AssertionError((outcome.failures + outcome.errors)[0][1].strip().rpartition("\n")[2])
        elif name.startswith("test"):
            found()


if __name__ == "__main__":
    main(sys.argv[1])
