"""One hash for the code behind a class or function, so that rows made by other code are never taken for the same.

The hash covers the definition and everything it uses: helpers and constants of its module, base classes, and what it
imports from its own package. It does not follow other packages, and it does not change when unrelated code does.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import marshal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

type Code = type | Callable[..., Any]


def code_hash(target: Code) -> str:
    """Sixteen hex digits that change when the code of `target`, or code it relies on, changes."""
    if not hasattr(target, "__qualname__"):  # an object that can be called
        target = type(target)
    digest = hashlib.sha256()
    for part in _parts(target):
        digest.update(len(part).to_bytes(8))  # so that moving text from one part to the next is a change
        digest.update(part)
    return digest.hexdigest()[:16]


def _parts(target: Code) -> list[bytes]:
    name, module_name = target.__qualname__.encode(), target.__module__
    try:
        own = inspect.getsource(target)
        reached = _Reach(module_name).follow(module_name, target.__qualname__.partition(".")[0])
        return [name, own.encode(), *(text.encode() for text in reached)]
    except (OSError, TypeError, SyntaxError):  # no source: typed at a prompt, or shipped without it
        file = _file_of(module_name)
        return [name, file.read_bytes()] if file else [name, *map(marshal.dumps, _code_objects(target))]


def _code_objects(target: Code) -> Iterator[CodeType]:
    for member in vars(target).values() if isinstance(target, type) else [target]:
        code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
        if isinstance(code, CodeType):
            yield code


class _Reach:
    """Walks from one top-level name to all the statements it needs, across the modules of one package."""

    def __init__(self, module_name: str) -> None:
        self._package = module_name.partition(".")[0]
        self._seen: set[tuple[str, int]] = set()

    def follow(self, module_name: str, name: str | None) -> list[str]:
        """Source of the statements that `name` needs (all of them when None), in a stable order."""
        file = _file_of(module_name)
        if file is None:
            return []
        if file.suffix != ".py":  # an extension module
            return [hashlib.sha256(file.read_bytes()).hexdigest()]
        module = _parsed(file.read_text(encoding="utf-8"))
        found: dict[int, list[str]] = {}
        queue = list(range(len(module.statements))) if name is None else list(module.binders.get(name, ()))
        while queue:
            index = queue.pop()
            if (module_name, index) in self._seen:  # names that need each other would lead in a circle
                continue
            self._seen.add((module_name, index))
            statement = module.statements[index]
            found[index] = [module.text(statement), *self._follow_import(statement, module_name)]
            # Whatever is reached through a dot begins with a name.
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            # Sorted, because a set of text has another order in each process, and the hash must be the same in all.
            queue.extend(binder for each in sorted(used) for binder in module.binders.get(each, ()))
        return [text for index in sorted(found) for text in found[index]]

    def _follow_import(self, statement: ast.stmt, module_name: str) -> Iterator[str]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                wanted = [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = _absolute(node, module_name)
                wanted = [_module_or_name(origin, alias.name) for alias in node.names]
            else:
                continue
            for imported, name in wanted:
                if imported.partition(".")[0] == self._package:
                    yield from self.follow(imported, None if name == "*" else name)


class _Module:
    """A module's top-level statements, and which of them give a name its meaning."""

    def __init__(self, source: str) -> None:
        # Not `splitlines`, which also ends a line at a form feed and others; `ast` counts line feeds alone.
        self._lines = list(io.StringIO(source))
        self.statements = ast.parse(source).body
        self.binders: dict[str, list[int]] = {}
        for index, statement in enumerate(self.statements):
            for name in _bound_names(statement):
                self.binders.setdefault(name, []).append(index)

    def text(self, statement: ast.stmt) -> str:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        # A definition begins after its decorators, as far as `ast` is concerned, and they change what it does.
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        return "".join(self._lines[first - 1 : statement.end_lineno])


_parsed = lru_cache(maxsize=64)(_Module)  # by the text itself: a file that changed is parsed anew


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _module_or_name(origin: str, name: str) -> tuple[str, str | None]:
    """What `from origin import name` means: its own module, or a name in one."""
    module_name = f"{origin}.{name}"
    # Looking for a module inside one that is no package would import that one.
    return (module_name, None) if _is_package(origin) and _file_of(module_name) else (origin, name)


def _absolute(node: ast.ImportFrom, module_name: str) -> str:
    if not node.level:
        return node.module or ""
    # One level is the module's own package; a package is its own, and `or None` keeps all of it.
    parts = module_name.split(".")[: (1 if _is_package(module_name) else 0) - node.level or None]
    return ".".join([*parts, node.module] if node.module else parts)


def _is_package(module_name: str) -> bool:
    file = _file_of(module_name)
    return file is not None and file.name == "__init__.py"


def _file_of(module_name: str) -> Path | None:
    """Where a module's code is. It need not be imported: the hash must not depend on what happens to be."""
    try:
        module = sys.modules.get(module_name)
        spec = None if module else find_spec(module_name)
        file = getattr(module, "__file__", None) or (spec.origin if spec else None)
    except (ImportError, ValueError, AttributeError):  # its parent is not a package, or cannot be imported
        return None
    return Path(file) if file and Path(file).is_file() else None
