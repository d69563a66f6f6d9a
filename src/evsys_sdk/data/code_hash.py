"""A hash of the code behind a class or function, to detect that derived rows are outdated.

The hash covers the definition and everything it uses: helpers and constants of its module, base classes, and imports
from its own package. It ignores other packages and unrelated code.
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
    """Sixteen hex digits that change with the code of `target` or code it uses."""
    if not hasattr(target, "__qualname__"):  # a callable object
        target = type(target)
    digest = hashlib.sha256()
    for part in _parts(target):
        digest.update(len(part).to_bytes(8))  # length prefix: moving text between parts changes the hash
        digest.update(part)
    return digest.hexdigest()[:16]


def _parts(target: Code) -> list[bytes]:
    name, module_name = target.__qualname__.encode(), target.__module__
    try:
        source = inspect.getsource(target)
        used = _Reach(module_name).follow(module_name, target.__qualname__.partition(".")[0])
        return [name, source.encode(), *(text.encode() for text in used)]
    except (OSError, TypeError, SyntaxError):  # no source available
        file = _file_of(module_name)
        return [name, file.read_bytes()] if file else [name, *map(marshal.dumps, _code_objects(target))]


def _code_objects(target: Code) -> Iterator[CodeType]:
    for member in vars(target).values() if isinstance(target, type) else [target]:
        code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
        if isinstance(code, CodeType):
            yield code


class _Reach:
    """Collects all statements that a top-level name needs, across the modules of one package."""

    def __init__(self, module_name: str) -> None:
        self._package = module_name.partition(".")[0]
        self._visited: set[tuple[str, int]] = set()

    def follow(self, module_name: str, name: str | None) -> list[str]:
        """Source of the statements that `name` needs (all if None), in a stable order."""
        file = _file_of(module_name)
        if file is None:
            return []
        if file.suffix != ".py":  # an extension module
            return [hashlib.sha256(file.read_bytes()).hexdigest()]
        module = _parsed(file.read_text(encoding="utf-8"))
        texts: dict[int, list[str]] = {}
        queue = list(range(len(module.statements))) if name is None else list(module.binders.get(name, ()))
        while queue:
            index = queue.pop()
            if (module_name, index) in self._visited:  # break cycles of mutual references
                continue
            self._visited.add((module_name, index))
            texts[index] = [module.text(module.statements[index]), *self._follow_imports(module, index, module_name)]
            queue.extend(binder for each in module.uses(index)[0] for binder in module.binders.get(each, ()))
        return [text for index in sorted(texts) for text in texts[index]]

    def _follow_imports(self, module: _Module, index: int, module_name: str) -> Iterator[str]:
        for node in module.uses(index)[1]:
            if isinstance(node, ast.Import):
                imports = [(alias.name, None) for alias in node.names]
            else:
                origin = _absolute(node, module_name)
                imports = [_module_or_name(origin, alias.name) for alias in node.names]
            for imported, name in imports:
                if imported.partition(".")[0] == self._package:
                    yield from self.follow(imported, None if name == "*" else name)


class _Module:
    """A module's top-level statements, and the statements that define each name."""

    def __init__(self, source: str) -> None:
        # Not `splitlines`, which also splits at form feeds and others; `ast` counts only line feeds.
        self._lines = list(io.StringIO(source))
        self.statements = ast.parse(source).body
        self.binders: dict[str, list[int]] = {}
        self._uses: dict[int, tuple[list[str], list[ast.Import | ast.ImportFrom]]] = {}
        for index, statement in enumerate(self.statements):
            for name in _bound_names(statement):
                self.binders.setdefault(name, []).append(index)

    def uses(self, index: int) -> tuple[list[str], list[ast.Import | ast.ImportFrom]]:
        """Names and imports in a statement; kept, because every arm of an experiment hashes the same code."""
        if index not in self._uses:
            nodes = list(ast.walk(self.statements[index]))
            # Attribute access starts with a name. Sorted: the order of a set of strings differs between processes.
            names = sorted({node.id for node in nodes if isinstance(node, ast.Name)})
            self._uses[index] = names, [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        return self._uses[index]

    def text(self, statement: ast.stmt) -> str:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        # In `ast`, a definition starts after its decorators, which belong to its code.
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        return "".join(self._lines[first - 1 : statement.end_lineno])


_parsed = lru_cache(maxsize=64)(_Module)  # keyed by the text, so changed files are parsed again


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
    """The target of `from origin import name`: a module, or a name in one."""
    module_name = f"{origin}.{name}"
    # Searching for a submodule of a non-package would import it.
    return (module_name, None) if _is_package(origin) and _file_of(module_name) else (origin, name)


def _absolute(node: ast.ImportFrom, module_name: str) -> str:
    if not node.level:
        return node.module or ""
    # One level is the module's package; `or None` keeps a package's whole name.
    parts = module_name.split(".")[: (1 if _is_package(module_name) else 0) - node.level or None]
    return ".".join([*parts, node.module] if node.module else parts)


def _is_package(module_name: str) -> bool:
    file = _file_of(module_name)
    return file is not None and file.name == "__init__.py"


def _file_of(module_name: str) -> Path | None:
    """The file of a module, which is not imported, so the hash does not depend on loaded modules."""
    try:
        module = sys.modules.get(module_name)
        spec = None if module else find_spec(module_name)
        file = getattr(module, "__file__", None) or (spec.origin if spec else None)
    except (ImportError, ValueError, AttributeError):  # its parent is not a package, or cannot be imported
        return None
    return Path(file) if file and Path(file).is_file() else None
