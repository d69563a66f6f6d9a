"""The process of the tests: starts the process of the solution, runs the tests against it, and reports.

Its only argument is a folder with `job.json` and the program of the solution. It removes the folder before the solution
runs, other processes cannot read its memory, and only this process holds the pipe of the report.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The values are of any type, and the Python is that of the sandbox.

from __future__ import annotations

import builtins
import ctypes
import json
import os
import sys
import types

from .proxies import Channel, NotPlain, Proxy, mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_DUMPABLE = 4
ALIASES = {"np": "numpy", "pd": "pandas"}
LIBRARIES = {"numpy", "pandas", "scipy", "sympy", "sklearn", "torch", "matplotlib", "hypothesis", "requests", "mock"}
"""Libraries that tests use for comparisons."""
# `stdlib_module_names` came with Python 3.10, and the sandbox may have an older one.
KNOWN = LIBRARIES.union(getattr(sys, "stdlib_module_names", ()))
"""Modules that are never imported from the solution: these libraries and the standard library."""


class Finder:
    """Imports `solution` from the solution's process, and with tests of files all modules that do not exist here."""

    def __init__(self, channel: Channel, *, only_solution: bool) -> None:
        self._channel, self._only_solution = channel, only_solution

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "solution" and (self._only_solution or name.partition(".")[0] in KNOWN):
            return None
        try:
            proxy = self._channel.ask("import", name)
            mark(proxy, name)
        except ImportError as error:
            if getattr(error, "name", name) not in (None, name):  # the module exists but cannot import another one
                raise
            return None
        # As a package, so that imports of its submodules reach this finder.
        spec = type(sys.__spec__)(name, self, is_package=True)  # pyright: ignore[reportAttributeAccessIssue]
        spec.loader_state = proxy
        return spec

    def create_module(self, spec: Any) -> Any:
        proxy = spec.loader_state
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(proxy, name)  # pyright: ignore[reportAttributeAccessIssue]
        module.__all__ = [name for name in dir(proxy) if _is_exported(name)]  # pyright: ignore[reportAttributeAccessIssue]
        return module

    def exec_module(self, module: Any) -> None:
        pass


def _is_exported(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and name[0] != "_" and not hasattr(builtins, name)


def names_for_tests(defined: Any) -> dict[str, Any]:
    """Return the solution's names for the tests; modules are imported in this process, or left out."""
    space: dict[str, Any] = {}
    for name, value in defined:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
            continue
        is_module = isinstance(value, Proxy) and value._kind == "module"
        if name in ALIASES or name in KNOWN or is_module:
            try:
                value = __import__(ALIASES.get(name, name))
            except ImportError:
                continue
        mark(value, name)
        space[name] = value
    return space


def run_test(test: Any, solution: dict[str, Any], channel: Channel, entry: str) -> None:
    """Run the statements of a test, then the test functions, classes and `check` that it does not call itself."""
    if redefined := [name for name in test["builtins"] if name in solution]:
        names = ", ".join(redefined)
        raise NotPlain(f"the solution redefines {names}, which the test uses; import it from `solution`")
    calls, asserted = test["calls"], set()
    # As a script, so that code under `if __name__ == "__main__"` runs too.
    space = dict(solution, __name__="__main__", __evsys_asserted__=lambda: asserted.add(True))
    if "unittest" in test["source"]:  # the cases run below; `unittest.main` would end this process
        __import__("unittest").main = lambda *_, **__: None
    n_before = channel.n_requests
    NotPlain.raised.clear()
    exec(compile(test["source"], "test.py", "exec"), space)
    module = types.SimpleNamespace(**space)
    _call_hook(module, "setup_module", module)
    for name, value in list(space.items()):
        if isinstance(value, Proxy) or (name in solution and value is solution[name]):
            continue
        if isinstance(value, type):
            _run_class(value)
        elif name.startswith("test") and name not in calls:
            _call_hook(module, "setup_function", value)
            _run_cases(value)
        elif name == "check" and "check" not in calls and isinstance(value, types.FunctionType):
            if entry not in solution:
                raise NameError(f"the solution does not define {entry or 'a function'}, which check() tests")
            value(solution[entry])
    if NotPlain.raised:
        raise NotPlain(NotPlain.raised[0])
    values = [name for name in test["asserted"] if not isinstance(solution.get(name, channel), (Proxy, Channel))]
    if not asserted or (channel.n_requests == n_before and not values):
        raise NotPlain("the test executed no assertion about the solution")


def _run_class(kind: Any) -> None:
    unittest = sys.modules.get("unittest")  # loaded if the test uses it; importing it here is slow
    if unittest and issubclass(kind, unittest.TestCase):
        outcome = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(outcome)
        wrong = outcome.failures + outcome.errors + outcome.skipped + outcome.expectedFailures
        if wrong or outcome.unexpectedSuccesses:
            reasons = [instance[1] for instance in wrong] or ["unexpected success"]
            raise AssertionError(reasons[0].strip().rpartition("\n")[2])
    elif kind.__name__.startswith("Test"):
        _call_hook(kind, "setup_class", kind)
        for name in [name for name in dir(kind) if name.startswith("test")]:
            instance = kind()
            _call_hook(instance, "setup_method", getattr(instance, name))
            try:
                _run_cases(getattr(instance, name))
            finally:
                _call_hook(instance, "teardown_method", getattr(instance, name))


def _call_hook(holder: Any, name: str, argument: Any) -> None:
    """Call a pytest hook, if it exists, with `argument` if it has a parameter."""
    hook = getattr(holder, name, None)
    if isinstance(hook, (types.FunctionType, types.MethodType)):  # excludes objects of the solution
        hook(*[argument][: hook.__code__.co_argcount - isinstance(hook, types.MethodType)])


def _run_cases(function: Any) -> None:
    """Call a test function, once for every combination of its parameters."""
    cases: list[dict[str, Any]] = [{}]
    for names, values in getattr(function, "parameters", []):
        new = [{name: value[at] if len(names) > 1 else value for at, name in enumerate(names)} for value in values]
        cases = [dict(old, **new_case) for old in cases for new_case in new]
    for case in cases:
        function(**case)


def make_pytest() -> Any:
    """Return a minimal `pytest` module, because the sandbox may lack pytest and the solution may replace it."""
    module: Any = types.ModuleType("pytest")

    class Raises:
        def __init__(self, expected: Any, match: Any = None) -> None:
            self.expected, self.match, self.value = expected, match, None

        def __enter__(self) -> Any:
            return self

        def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
            assert kind is not None, f"DID NOT RAISE {self.expected}"
            self.type, self.value = kind, value
            if not issubclass(kind, self.expected) or isinstance(value, NotPlain):
                return False
            text = str(value)
            assert self.match is None or __import__("re").search(self.match, text), f"{text!r} does not match"
            return True

    def parametrize(names: Any, values: Any, **_: Any) -> Any:
        split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def mark(function: Any) -> Any:
            function.parameters = [*getattr(function, "parameters", []), (split, list(values))]
            return function

        return mark

    def fail(reason: str = "") -> Any:
        raise AssertionError(reason)

    class Marks:
        def __getattr__(self, name: str) -> Any:  # other marks have no effect, so that no test is skipped
            return lambda *arguments, **_: next(filter(callable, arguments), lambda function: function)

    Marks.parametrize = staticmethod(parametrize)  # pyright: ignore[reportAttributeAccessIssue]
    module.param = lambda *values, **_: values[0] if len(values) == 1 else values
    module.raises, module.approx, module.fail, module.skip, module.main = Raises, Approx, fail, fail, lambda *_: 0
    module.mark = Marks()
    return module


class Approx:
    """Like `pytest.approx`: compares numbers, also in lists, tuples and dicts, with a tolerance."""

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self._expected, self._nan_ok = expected, nan_ok
        self._rel, self._abs = (1e-6 if rel is None and abs is None else rel or 0.0), (1e-12 if abs is None else abs)

    def __eq__(self, other: Any) -> bool:
        return self._is_close(other, self._expected)

    def _is_close(self, actual: Any, expected: Any) -> bool:
        if isinstance(actual, Proxy):
            return actual._refuse("cannot be compared with a number")  # pyright: ignore[reportPrivateUsage]
        if isinstance(expected, dict):
            same = isinstance(actual, dict) and actual.keys() == expected.keys()
            return same and all(self._is_close(actual[key], expected[key]) for key in expected)
        if isinstance(expected, (list, tuple)):
            same = isinstance(actual, (list, tuple)) and len(actual) == len(expected)
            return same and all(map(self._is_close, actual, expected))
        if not isinstance(actual, (int, float)) or not isinstance(expected, (int, float)):
            return bool(actual == expected)
        if actual != actual and expected != expected:
            return self._nan_ok
        return actual == expected or abs(actual - expected) <= max(self._rel * abs(expected), self._abs) != float("inf")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def failure(run: Callable[..., Any], *arguments: Any) -> str:
    """Call `run` and return the error as text, or an empty text; SystemExit counts as an error."""
    try:
        run(*arguments)
    except BaseException as error:
        return (f"{type(error).__name__}: {error}").strip() or "failed"
    return ""


def reporter() -> Callable[..., None]:
    """Return a function that writes to the current stdout; redirect 0, 1 and 2 to /dev/null for all other output."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def report(**entry: object) -> None:
        body = json.dumps(entry)  # ASCII, so that text of the solution contains no line separators
        remaining = memoryview(f"{len(body)}:{body}\n".encode("ascii"))
        while remaining:
            remaining = remaining[os.write(channel, remaining) :]

    return report


def main(folder: str) -> None:
    """Report `state`, then one entry for each test: its index, and why it failed or an empty text."""
    report = reporter()
    # Not dumpable, so that other processes of this user cannot read its memory or copy its descriptors.
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
    # Last, so that the solution provides only modules that do not exist here.
    sys.meta_path.append(Finder(channel, only_solution=bool(job["code"])))
    sys.modules["pytest"] = make_pytest()
    space: dict[str, Any] = {}
    load_error = failure(lambda: space.update(names_for_tests(channel.ask("load", job["code"]))))
    for number, test in enumerate(job["tests"]):
        error = load_error or failure(run_test, test, space, channel, job["entry"])
        report(test=number, failure=error[:500])
    channel.end()


if __name__ == "__main__":
    main(sys.argv[1])
