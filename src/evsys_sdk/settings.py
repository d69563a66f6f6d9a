"""What a project tells the SDK outside of its experiments: which of its modules register extensions.

# pyproject.toml of a project
[tool.evsys]
imports = ["src"]
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError, Problem


def import_project_code(extra: Iterable[str] = (), *, root: Path | None = None) -> list[ModuleType]:
    """Import the project's own modules and those named on the command line, so that their kinds are registered."""
    root = (root or Path.cwd()).resolve()
    return [_import(reference, root) for reference in [*_project_imports(root), *extra]]


def _project_imports(root: Path) -> list[str]:
    path = next(
        (folder / "pyproject.toml" for folder in (root, *root.parents) if (folder / "pyproject.toml").is_file()), None
    )
    if path is None or b"[tool.evsys]" not in path.read_bytes():
        return []
    import tomllib

    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["evsys"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError) as error:
        raise ConfigError(Problem(f"cannot be read: {error}", file=str(path), hint="Correct the TOML.")) from None
    imports = settings.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(item, str) for item in imports):  # pyright: ignore[reportUnknownVariableType]
        message = "should be a list of module names"
        raise ConfigError(
            Problem(message, path="tool.evsys.imports", value=imports, file=str(path), hint='Write ["src"].')
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return imports  # pyright: ignore[reportUnknownVariableType]


def _import(reference: str, root: Path) -> ModuleType:
    """Import a module by dotted name or by the path of a `.py` file."""
    try:
        if reference.endswith(".py"):
            return _import_file((root / reference).resolve())
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        return importlib.import_module(reference)
    except ModuleNotFoundError as error:
        hint = "Give a module name that Python can import from here, or the path of a .py file."
        raise ConfigError(Problem(f"cannot import '{reference}': {error}", hint=hint)) from error
    except (ConfigError, KeyboardInterrupt):
        raise
    except Exception as error:
        message = f"importing '{reference}' failed with {type(error).__name__}: {error}"
        raise ConfigError(Problem(message, hint="Correct that module; it is the project's own code.")) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(Problem("there is no such file to import", value=str(path), hint="Check the path."))
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(Problem("cannot be imported", value=str(path), hint="Give the path of a .py file."))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
