"""The process of the tests: starts the one of the solution, runs the tests against it, and reports.

Its only argument is a folder with `job.json` and the program of the solution. The folder is gone before the solution
runs, no other process can look into this one, and what it reports goes to a pipe that only it holds.
"""

# It handles values of any type, on the Python of any sandbox.

from __future__ import annotations

import builtins
import ctypes
import json
import os
import sys
import types

from .proxies import Channel, NotPlain, Proxy, know

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_DUMPABLE = 4
ALIASES = {"np": "numpy", "pd": "pandas"}


class Finder:
    """Modules that this process does not have are the solution's: what lies in the working folder."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        try:
            proxy = self._channel.ask("import", name)
            know(proxy, name)
        except ImportError as error:
            if getattr(error, "name", name) not in (None, name):  # it is there, and lacks a module of its own
                raise
            return None
        # As a package, so that the import of a module inside it is asked for as well.
        spec = type(sys.__spec__)(name, self, is_package=True)  # pyright: ignore[reportAttributeAccessIssue]
        spec.loader_state = proxy
        return spec

    def create_module(self, spec: Any) -> Any:
        proxy = spec.loader_state
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(proxy, name)  # pyright: ignore[reportAttributeAccessIssue]
        module.__all__ = [name for name in dir(proxy) if not name.startswith("_")]  # pyright: ignore[reportAttributeAccessIssue]
        return module

    def exec_module(self, module: Any) -> None:
        pass


def names_for_tests(defined: Any) -> dict[str, Any]:
    """What the solution defines, as tests see it. A module is never the solution's word for one that exists here."""
    space: dict[str, Any] = {}
    for name, value in defined:
        # `stdlib_module_names` came with Python 3.10, and the sandbox may have an older one.
        module = ALIASES.get(name) or (name if name in getattr(sys, "stdlib_module_names", ()) else None)
        if module is None and isinstance(value, Proxy) and value._kind == "module":
            module = value._name
        if module is not None:
            value = _import_own(module, otherwise=value)
        know(value, str(name))
        space[str(name)] = value
    return space


def _import_own(module: str, *, otherwise: Any) -> Any:
    try:
        __import__(module)
    except ImportError:
        return otherwise
    return sys.modules[module]


def find_shadowed(test: str, space: dict[str, Any]) -> set[str]:
    """Builtin names that the solution defines anew and that a test uses without having said where from."""
    redefined = {name for name in space if hasattr(builtins, name)}
    if not redefined:
        return redefined
    import ast

    names = [node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)]
    return redefined & {name.id for name in names if isinstance(name.ctx, ast.Load)}


def run_test(test: str, solution: dict[str, Any]) -> None:
    """Run the statements of a test, then the test functions and test cases that it defines."""
    if taken := sorted(find_shadowed(test, solution)):
        raise NotPlain(
            "the solution redefines {}, which the test uses; import it from `solution`".format(", ".join(taken))
        )
    space = dict(solution, __name__="tests")
    NotPlain.raised.clear()
    exec(compile(test, "test.py", "exec"), space)
    unittest = sys.modules.get("unittest")  # there, if the test uses it; importing it here would take longer than most
    for name, found in list(space.items()):
        if name in solution and found is solution[name]:
            continue
        if unittest and isinstance(found, type) and issubclass(found, unittest.TestCase):
            outcome = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(found).run(outcome)
            if not outcome.wasSuccessful():
                raise AssertionError((outcome.failures + outcome.errors)[0][1].strip().rpartition("\n")[2])
        elif name.startswith("test") and not isinstance(found, Proxy):
            found()
    if NotPlain.raised:
        raise NotPlain(NotPlain.raised[0])


def failure(run: Callable[..., Any], *given: Any) -> str:
    """Why something failed, or nothing; an early exit is a failure too."""
    try:
        run(*given)
    except BaseException as error:
        return (f"{type(error).__name__}: {error}").strip() or "failed"
    return ""


def reporter() -> Callable[..., None]:
    """Writes to what is stdout now; whatever else is printed from here on goes nowhere."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def report(**entry: object) -> None:
        body = json.dumps(entry)  # ASCII: whatever text the solution chose, it holds no character that ends a line
        left = memoryview(f"{len(body)}:{body}\n".encode("ascii"))
        while left:
            left = left[os.write(channel, left) :]

    return report


def main(folder: str) -> None:
    """Report `state`, then one entry for each test: its index, and why it failed or an empty text."""
    report = reporter()
    # Not dumpable: no other process of this user may then read its memory or take over its descriptors.
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        return report(state="unprotected")
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    with open(os.path.join(folder, "solution.py"), encoding="utf-8") as file:
        program = file.read()
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    report(state="ready")
    os.chdir(job["cwd"] or ".")
    channel = Channel(program)
    # Behind all others: the solution answers only for modules that do not exist here.
    sys.meta_path.append(Finder(channel))
    space: dict[str, Any] = {}
    broken = failure(lambda: space.update(names_for_tests(channel.ask("load", job["code"]))))
    for number, test in enumerate(job["tests"]):
        wrong = broken or failure(run_test, test, space)
        report(test=number, failure=wrong[:500])
    channel.end()


if __name__ == "__main__":
    main(sys.argv[1])
