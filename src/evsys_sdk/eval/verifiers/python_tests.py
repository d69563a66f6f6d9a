"""`python_tests`: the code in the completion passes the task's tests, inside the rollout's sandbox.

    {fn_name: python_tests, expected: ["assert add(2, 2) == 4", "assert add(-1, 1) == 0"]}

A test is Python source: statements, `test_*` functions and `Test*` classes of pytest, `unittest` cases, or a function
`check(candidate)` as in HumanEval. A test that executes no assertion about the solution fails. Code and tests run in
two processes: the tests call the solution's functions and get plain data back, which they compare in their own process.
Tests can use objects of the solution's classes and call their methods, but these never equal plain data. A model's code
never runs directly on this machine: without an environment the verifier raises.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import secrets
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...config.base import Strict
from ...data.shapes import is_list
from ...errors import EvalError, show
from ...protocols import VerificationResult
from ..answers.answer import code_blocks, extract_answer, without_thinking
from ..test_runner import program
from ..verifier import BaseVerifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...rollouts.environment import Environment, ExecResult


_SCRATCH = "/tmp"
"""Folder for the runner's files; not the working folder, where the policy may have left files."""


_LONGEST_LENGTH = 6
"""Maximum digits of the length of a report entry."""


class PythonTestsParams(Strict):
    """The code to test, and the settings of the tests."""

    code: Literal["last_block", "all_blocks", "whole", "none"] = "last_block"
    """Part of the completion that is code; `none` tests the files that the policy left in the sandbox."""
    timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Time limit of all tests together in seconds; unfinished tests fail."""
    partial_credit: bool = False
    """Whether the reward is the share of passed tests; otherwise all tests must pass."""
    python: str = Field(default="python3", min_length=1)
    """Command that starts Python in the sandbox."""
    entry_point: str | None = None
    """Function or class to pass to `check(candidate)`; by default the last one that the code defines."""
    cwd: str | None = None
    """Folder in the sandbox to run the tests in; by default its working folder."""


class PythonTests(BaseVerifier[PythonTestsParams]):
    """1 if the code in the completion passes the expected tests in the rollout's sandbox."""

    name: ClassVar[str] = "python_tests"
    Config = PythonTestsParams

    async def verify(self, *, completion: str, target: Any, environment: Environment | None) -> VerificationResult:
        """Copy code and tests into the sandbox, run them there, and read the report."""
        if environment is None:
            raise EvalError(
                "there is no environment to run the tests in, and a model's code is never run on this machine. "
                "Give the harness an environment, for example bwrap."
            )
        tests = check_tests(target)
        end_processes: Any = getattr(environment, "kill_processes", None)
        if end_processes is not None:  # processes of the policy could modify the tests before they run
            await end_processes()
        code = self._code(completion)
        entry = self.cfg.entry_point or _last_function(code)
        job = {"code": code, "tests": list(map(_prepare, tests)), "entry": entry, "cwd": self.cfg.cwd}
        folder = await _write_job(environment, job)
        # -I ignores the working folder and PYTHON* variables, where the policy may have left modules.
        command = f"exec {self.cfg.python} -I {folder}/tests.py {folder}"
        done = await environment.exec(command, timeout_s=self.cfg.timeout_s)
        return self._judge(tests, _read_report(done.stdout), done)

    def _code(self, completion: str) -> str:
        if self.cfg.code == "none":
            return ""
        text = without_thinking(completion)
        blocks = code_blocks(text, "python", "python3", "py", "") if self.cfg.code != "whole" else []
        if not blocks:
            return extract_answer(text)
        return blocks[-1] if self.cfg.code == "last_block" else "\n".join(blocks)

    def _judge(self, tests: list[str], report: list[dict[str, Any]], done: ExecResult) -> VerificationResult:
        state = report[0].get("state") if report else None
        if state not in ("ready", "unprotected"):
            raise EvalError(
                f"the tests did not start: '{self.cfg.python}' exited with {done.exit_code} and printed "
                f"{show(done.stderr.strip())}. The sandbox needs Python, and room to write."
            )
        if state == "unprotected":
            raise EvalError("the tests could not be shielded from the code: that takes Linux. Choose another sandbox.")
        outcomes = {entry["test"]: str(entry["failure"]) for entry in report[1:]}
        passed = sum(outcomes.get(number) == "" for number in range(len(tests)))
        failures = {str(number): why for number, why in outcomes.items() if why}
        info = {"passed": passed, "tests": len(tests), "failures": failures, "timed_out": done.timed_out}
        return VerificationResult(passed / len(tests) if self.cfg.partial_credit else float(passed == len(tests)), info)


def _read_report(text: str) -> list[dict[str, Any]]:
    """Parse the entries of a report, each `<length>:<JSON>`, up to the first incomplete entry."""
    entries: list[dict[str, Any]] = []
    while text:
        length, _, rest = text.partition(":")
        if not length.isdecimal() or len(length) > _LONGEST_LENGTH:
            break
        body, text = rest[: int(length)], rest[int(length) + 1 :]
        try:
            entries.append(json.loads(body))
        except ValueError:
            break
    return entries


def check_tests(target: Any) -> list[str]:
    """Return the tests of a task; raise EvalError if there are none, or if they cannot judge a solution."""
    tests: list[Any] = target if is_list(target) else [target]
    if not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise EvalError(f"expected is {show(target)}. Give the tests as Python source: a text, or a list of texts.")
    if problems := problems_in(tests):
        raise EvalError(" ".join(problems))
    return tests


def _last_function(code: str) -> str:
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        return functions[-1] if functions else ""
    return ""


async def _write_job(environment: Environment, job: dict[str, Any]) -> str:
    """Write the programs and the job to a new folder of the sandbox; return the folder."""
    files = {"tests.py": program("tests"), "solution.py": program("solution"), "job.json": json.dumps(job)}
    name = f"evsys-{secrets.token_hex(8)}"
    folder = f"{_SCRATCH}/{name}" if environment.name != "unsafe_host" else name  # unsafe_host has only its folder
    for path, content in files.items():
        await environment.write_file(f"{folder}/{path}", content)
    return folder


_UNSUPPORTED = {"pytest.fixture", "unittest.mock", "inspect"}
_BUILTINS = frozenset(dir(builtins))
_COUNT = ast.parse("__evsys_asserted__()").body[0]
_BLOCKS = ("body", "orelse", "finalbody")


def problems_in(tests: list[str]) -> list[str]:
    """Return the problems of tests that cannot judge any solution."""
    problems: list[str] = []
    for number, test in enumerate(tests):
        place = f"test {number}" if len(tests) > 1 else "the test"
        try:
            problems += [f"{place}, line {line}: {problem}" for line, problem in _problems_of(test)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(f"{place} is not Python: {error}.")
    return problems


@functools.lru_cache(maxsize=4096)  # every rollout of a task has the same tests
def _problems_of(test: str) -> list[tuple[int, str]]:
    tree = ast.parse(test)
    problems: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(("test", "check")):
            problems += [(node.lineno, f"{node.name} {why}") for why in _function_problems(node, node in tree.body)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            imported = [f"{module}.{alias.name}" for module in modules for alias in node.names] + modules
            for name in sorted(_UNSUPPORTED.intersection(imported)):
                why = "reaches into the solution's process, which tests cannot. Ask the solution for data instead"
                problems.append((node.lineno, f"{name} {why}."))
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in _UNSUPPORTED:
            why = "needs a test runner that these tests do not have. Write plain functions"
            problems.append((node.lineno, f"{ast.unparse(node)} {why}."))
    for name, line in _judged_by_solution(tree):
        problems.append((line, f"{name} decides, and is not defined here: the solution could supply it. Import it."))
    if not any(isinstance(node, ast.Raise) or _asserts(node) for node in ast.walk(tree)):
        problems.append((1, "there is no assertion, so any code would pass. Write assert statements."))
    return sorted(set(problems))


def _judged_by_solution(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield undefined functions that decide an assertion about a result, e.g. `assert same(add(1, 2), 3)`."""
    known = _BUILTINS.union(*(_names_bound_by(node) for node in ast.walk(tree)))

    def is_theirs(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known

    for node in ast.walk(tree):
        decides = node.test if isinstance(node, ast.Assert) else getattr(node, "value", None)
        while isinstance(decides, ast.UnaryOp):
            decides = decides.operand
        if not isinstance(decides, ast.Call) or not is_theirs(decides):
            continue
        arguments = [*decides.args, *(keyword.value for keyword in decides.keywords)]
        is_about_result = any(is_theirs(part) for argument in arguments for part in ast.walk(argument))
        if is_about_result if isinstance(node, ast.Assert) else isinstance(node, ast.Expr) and _is_assertion(decides):
            yield ast.unparse(decides.func), decides.lineno


def _names_bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    return [str(name) for name in (getattr(node, "name", None), getattr(node, "arg", None)) if name]


def _function_problems(node: ast.FunctionDef | ast.AsyncFunctionDef, at_top: bool) -> Iterator[str]:
    """Yield the reasons why a test function would not run completely."""
    needed = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
    is_parametrized = any("parametrize" in ast.unparse(part) for part in node.decorator_list)
    if at_top and needed > 0 and not is_parametrized and node.name.startswith("test"):
        yield "has parameters, and there are no fixtures here. Give them values in the test."
    if isinstance(node, ast.AsyncFunctionDef):
        yield "is async and would never run. Call asyncio.run inside it."
    inside = [part for statement in node.body for part in ast.walk(statement)]
    if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in inside):
        yield "is a generator and would never run. Remove the yield."


@functools.lru_cache(maxsize=4096)
def _prepare(test: str) -> dict[str, Any]:
    """Instrument a test to record executed assertions; return it with the functions and names that it uses."""
    tree = ast.parse(test)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    calls = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imported = {name for node in ast.walk(tree) if isinstance(node, ast.alias) for name in _names_bound_by(node)}
    for node in list(ast.walk(tree)):
        for name in _BLOCKS:
            if is_list(block := getattr(node, name, None)):
                counted = [[_COUNT, statement] if _asserts(statement) else [statement] for statement in block]
                setattr(node, name, [*chain(*counted)])
    builtin_names = _BUILTINS.intersection(name.id for name in names) - imported
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    asserted = {name.id for node in asserts for name in ast.walk(node.test) if isinstance(name, ast.Name)}
    asserted -= {name for node in ast.walk(tree) for name in _names_bound_by(node)}
    uses = {"calls": calls, "builtins": builtin_names, "asserted": asserted}
    return {"source": ast.unparse(tree), **{what: sorted(values) for what, values in uses.items()}}


def _asserts(node: ast.AST) -> bool:
    """Whether a statement is an assertion about a name; `assert True` is not."""
    if isinstance(node, ast.Assert):
        return any(isinstance(child, ast.Name) for child in ast.walk(node.test))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Match):
        return False
    if not hasattr(node, "body"):
        return any(map(_is_assertion, ast.walk(node)))
    blocks = [getattr(child, name, []) for child in [node, *getattr(node, "handlers", [])] for name in _BLOCKS]
    items = [item.context_expr for item in getattr(node, "items", [])]
    is_raised = any(isinstance(child, ast.Raise) for block in blocks for child in block)
    return is_raised or any(map(_is_assertion, items))


def _is_assertion(node: ast.AST) -> bool:
    name = getattr(getattr(node, "func", None), "attr", None) or getattr(getattr(node, "func", None), "id", "")
    return isinstance(node, ast.Call) and (name.startswith("assert") or name == "raises")
