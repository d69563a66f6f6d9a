"""Which tests can be judged: those that ask the solution for data. What cannot be asked for is said before a run."""

from __future__ import annotations

import ast

_UNKNOWN_HERE = {"pytest.fixture", "pytest.mark.parametrize", "unittest.mock", "inspect"}


def problems_in(tests: list[str]) -> list[str]:
    """Sentences about tests that could never be judged, whatever the solution."""
    found: list[str] = []
    for number, test in enumerate(tests):
        place = f"test {number}" if len(tests) > 1 else "the test"
        try:
            tree = ast.parse(test)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            found.append(f"{place} is not Python: {error}.")
            continue
        found += [f"{place}, line {line}: {problem}" for line, problem in sorted(set(_problems(tree)))]
    return found


def _problems(tree: ast.Module) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            needed = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            if needed > 0:
                why = "has parameters, and there are no fixtures here. Give them values in the test"
                found.append((node.lineno, f"{node.name} {why}."))
            if isinstance(node, ast.AsyncFunctionDef):
                found.append((node.lineno, f"{node.name} is async and would never run. Call asyncio.run inside it."))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            named = [f"{module}.{alias.name}" for module in modules for alias in node.names] + modules
            for name in sorted(_UNKNOWN_HERE.intersection(named)):
                why = "reaches into the solution's process, which tests cannot. Ask the solution for data instead"
                found.append((node.lineno, f"{name} {why}."))
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in _UNKNOWN_HERE:
            why = "needs a test runner that these tests do not have. Write plain functions"
            found.append((node.lineno, f"{ast.unparse(node)} {why}."))
    return found
