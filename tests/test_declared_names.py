"""What parts of a run say to each other is declared: no bag of strings, no private name looked up from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import evsys_sdk

SOURCE = Path(evsys_sdk.__file__).parent
DOCUMENTED = {"train_rows", "n_train_rows", "backend_handles", "model_name", "tags"}
RECORD_READERS = ("history", "experiment/conclusion", "experiment/plan/speed.py")
"""Read `run_result.json`, in which notes stand among the extras; they have no RunResult in their hands."""


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            yield where, node


def is_extras(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "extras"


def looked_up(node: ast.AST) -> list[ast.expr]:
    """The keys by which `something.extras` is asked: by index, by a method, by `in`, or merged from a literal."""
    if isinstance(node, ast.Subscript) and is_extras(node.value):
        return [node.slice]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_extras(node.func.value):
        return node.args[:1] if node.func.attr in ("get", "pop", "setdefault") else []
    if isinstance(node, ast.Compare) and any(is_extras(right) for right in node.comparators):
        return [node.left]
    if isinstance(node, ast.AugAssign) and is_extras(node.target) and isinstance(node.value, ast.Dict):
        return [key for key in node.value.keys if key is not None]
    return []


def test_only_documented_keys_of_extras_are_read() -> None:
    lookups = [(where, key) for where, node in nodes() for key in looked_up(node)]
    assert lookups, "the context's rows are read somewhere"
    literal = {(where, str(key.value)) for where, key in lookups if isinstance(key, ast.Constant)}
    undocumented = sorted(
        (where, key) for where, key in literal if key not in DOCUMENTED and not where.startswith(RECORD_READERS)
    )
    assert undocumented == []
    computed = {where for where, key in lookups if not isinstance(key, ast.Constant)}
    assert computed <= {"experiment/arms/results.py"}, "only the reader of results walks over names"


def test_the_keys_of_the_context_are_exactly_the_documented_ones() -> None:
    tree = ast.parse((SOURCE / "experiment" / "runner.py").read_text("utf-8"))
    [flow] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train_and_score"]
    filled = [node.value for node in ast.walk(flow) if isinstance(node, ast.AnnAssign | ast.AugAssign)]
    keys = [key.value for value in filled if isinstance(value, ast.Dict) for key in value.keys if key is not None]  # pyright: ignore[reportAttributeAccessIssue]
    assert set(keys) == DOCUMENTED


OTHER_PEOPLES = ("backends/fireworks/", "backends/local/", "backends/tinker/")
"""Know how torch, transformers, tinker and fireworks are made where those offer nothing public."""
OF_PYTHON = {
    ("eval/test_runner/values.py", "_fields"): "what a named tuple calls its fields, in public",
    ("redact.py", "_data"): "the environment as a plain dict, asked for every line; without it the environment itself",
}


def private_lookup(node: ast.AST) -> str | None:
    """The private name that a call asks another object for."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
        return None
    target, name = node.args[0], node.args[1]
    if node.func.id not in ("getattr", "setattr", "hasattr", "delattr") or not isinstance(name, ast.Constant):
        return None
    own = isinstance(target, ast.Name) and target.id == "self"
    text = str(name.value)
    return text if text.startswith("_") and not text.endswith("__") and not own else None


def test_no_private_name_is_looked_up_from_outside() -> None:
    lookups = [(where, name) for where, node in nodes() if (name := private_lookup(node)) is not None]
    assert [lookup for lookup in lookups if not lookup[0].startswith(OTHER_PEOPLES) and lookup not in OF_PYTHON] == []
