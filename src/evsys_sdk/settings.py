"""Settings of a project in its pyproject.toml: modules that register extensions, and the gate.

# pyproject.toml of a project
[tool.evsys]
imports = ["src"]
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from .errors import ConfigError, EvsysError, Problem
from .user_code import default_limit_s, user_code


def import_project_code(extra: Iterable[str] = ()) -> list[ModuleType]:
    """Import the project's modules and those of `--import`, so that their extensions are registered."""
    root = Path.cwd().resolve()
    named = list(extra)
    modules: list[ModuleType] = []
    for reference in [*_project_imports(root), *named]:
        with user_code(f"importing '{reference}'", limit_s=default_limit_s()):
            modules.append(import_reference(reference, root))
    _named.extend(reference for reference in named if reference not in _named)
    return modules


_named: list[str] = []


def imported_by_name() -> list[str]:
    """The modules of `--import`, which a repeated command needs again."""
    return list(_named)


def _project_imports(root: Path) -> list[str]:
    """`tool.evsys.imports` of the nearest pyproject.toml; its folder becomes importable."""
    path = _find_pyproject(root)
    settings = _evsys_table(path) if path else {}
    if path is None or not settings:
        return []
    for key in settings:
        if key not in ("imports", "gate"):
            raise _problem(path, f"tool.evsys.{key}", f"unknown key '{key}'", hint="Known are 'imports' and 'gate'.")
    imports: Any = settings.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(item, str) for item in cast("list[Any]", imports)):
        message = "should be a list of module names"
        raise _problem(path, "tool.evsys.imports", message, value=imports, hint='Write it like this: ["src"].')
    _make_importable(path.parent)
    return cast("list[str]", imports)


def requires_gate() -> bool:
    """Whether the project deploys only gated weights: `tool.evsys.gate = "required"`."""
    path = _find_pyproject(Path.cwd().resolve())
    gate = _evsys_table(path).get("gate") if path else None
    if path is not None and gate not in (None, "required"):
        raise _problem(
            path, "tool.evsys.gate", "should be 'required'", value=gate, hint="Remove it, or set 'required'."
        )
    return gate == "required"


def _find_pyproject(root: Path) -> Path | None:
    return next((file for folder in (root, *root.parents) if (file := folder / "pyproject.toml").is_file()), None)


def _evsys_table(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
        if not re.search(rb"evsys(?![-_]sdk)", content):  # importing tomllib takes longer than the rest
            return {}
        import tomllib

        table = tomllib.loads(content.decode("utf-8")).get("tool", {}).get("evsys", {})
    except (OSError, ValueError) as error:
        raise _problem(path, "", f"cannot be read: {error}", hint="Correct the file.") from None
    if not isinstance(table, dict):
        raise _problem(path, "tool.evsys", "should be a table", value=table, hint="Write [tool.evsys].")
    return cast("dict[str, Any]", table)


def _problem(path: Path, key: str, message: str, *, hint: str, **value: Any) -> ConfigError:
    return ConfigError(Problem(message, path=key, file=str(path), hint=hint, **value))


def import_reference(reference: str, root: Path) -> ModuleType:
    """Import a module by dotted name or by the path of a `.py` file."""
    try:
        if reference.endswith(".py"):
            return _import_file((root / reference).resolve())
        _make_importable(root)
        return importlib.import_module(reference)
    except EvsysError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{reference}.".startswith(f"{error.name}."):
            hint = f"Give a module that can be imported from {root}, or the path of a .py file."
            raise ConfigError(Problem(f"there is no module '{reference}'", hint=hint)) from error
        raise _explain_failure(reference, error, "Install what is missing, or correct that module.") from error
    except (Exception, SystemExit) as error:
        raise _explain_failure(reference, error, "Correct that module; it is the project's own code.") from error


def _explain_failure(reference: str, error: BaseException, hint: str) -> ConfigError:
    """The error of a failed import, at the innermost line of project code."""
    message = f"importing '{reference}' failed: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return ConfigError(Problem(message, hint=hint, file=error.filename, line=error.lineno))
    import traceback

    libraries = ("<frozen", __file__, sys.prefix, sys.base_prefix)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(libraries)]
    file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    return ConfigError(Problem(message, hint=hint, file=file, line=line))


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(Problem("there is no such file to import", value=str(path), hint="Check the path."))
    # A unique name, because the file name may be that of another module.
    name = f"{re.sub(r'\W', '_', path.stem)}_{zlib.crc32(os.fsencode(path)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(Problem("cannot be imported", value=str(path), hint="Give the path of a .py file."))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up classes by module name
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for modules next to it; last, so that they hide no library
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
