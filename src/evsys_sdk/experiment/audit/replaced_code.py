"""Code of this package that something else stands in for in this process.

A project extends the package by registering; whoever assigns to its modules and classes changes what an experiment
is, and no config says so. This notices what was assigned. It is no defence against code that hides itself as well:
what runs in a process can do anything to it.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any, cast

_PACKAGE = __name__.partition(".")[0]
LIBRARIES = (
    *("annotated_types", "click", "httpx", "numpy", "pydantic", "pydantic_core", "rich", "typing_extensions", "yaml"),
    *("anthropic", "datasets", "fastapi", "gepa", "google", "harbor", "matplotlib", "openai", "opentelemetry", "peft"),
    *("psycopg", "ray", "starlette", "tensorboard", "tinker", "torch", "transformers", "trl", "uvicorn", "wandb"),
    *("alembic", "h11", "huggingface_hub", "llguidance", "msgspec", "pytest", "safetensors", "sqlalchemy", "triton"),
)
"""What this package builds on: their decorators leave functions of their own in our modules and classes."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\.]+)")
_NO_CODE = frozenset({str, int, float, bool, NoneType, tuple, list, dict, set, frozenset, ModuleType, re.Pattern})
_STANDARD_LIBRARY = f"{os.path.dirname(os.__file__)}{os.sep}"
_CUSTOM = ("sitecustomize", "usercustomize")
_known: dict[str, tuple[int, list[str]]] = {}
"""By module: what it held when it was last looked at, and what of that is not ours."""


def find_replaced_code() -> list[str]:
    """Names in this package that hold code from elsewhere, each with the file that it comes from."""
    # A copy of the list: another thread may import something meanwhile.
    modules = [(name, one) for name, one in list(sys.modules.items()) if name.partition(".")[0] == _PACKAGE]
    return sorted({line for name, module in modules for line in _look_into(name, module)})


def find_start_hooks() -> list[str]:
    """Modules that Python imports by itself before anything else, where neither Python nor a library brought them."""
    hooks = [(name, getattr(sys.modules.get(name), "__file__", None)) for name in _CUSTOM]
    return [f"{name} ({_shorten(path)})" for name, path in hooks if path and not _is_known_file(path)]


def _look_into(name: str, module: ModuleType) -> list[str]:
    """What a module holds that is not ours; looked for again only if it holds something else than before."""
    content = list(vars(module).items())
    for key, value in [*content]:
        if isinstance(value, type) and value.__module__ == name:
            content += [(f"{key}.{inner}", one) for inner, one in list(vars(value).items())]
    # Whether something was assigned since shows in the ids, without looking into each value again.
    state = hash(tuple(id(value) for _, value in content))
    before = _known.get(name)
    if before is not None and before[0] == state:
        return before[1]
    found = [
        f"{name}.{key} by {_shorten(code.co_filename)}"
        for key, value in content
        if (code := _code_of(value)) is not None and not _is_expected(key.rpartition(".")[2], code.co_filename)
    ]
    _known[name] = state, found
    return found


def _code_of(value: Any) -> CodeType | None:
    """The code of a function, however it is wrapped up."""
    if type(value) is FunctionType:  # most are, or are no code at all, and there are thousands
        return value.__code__
    if type(value) in _NO_CODE:
        return None
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, classmethod | staticmethod):
        value = cast(Any, value).__func__
    else:
        # Asked in this order: a model of pydantic that nobody needed yet is built when it is asked for any attribute.
        value = vars(value).get("__wrapped__") if callable(value) and hasattr(value, "__dict__") else None
    return value.__code__ if isinstance(value, FunctionType) else None


def _is_expected(name: str, file: str) -> bool:
    if file.startswith("<"):  # made by dataclasses and the like, which make what Python calls
        return file.startswith("<frozen ") or (name.startswith("__") and name.endswith("__"))
    return _is_known_file(file)


@cache
def _is_known_file(file: str) -> bool:
    """Whether a file is of this package, of Python itself, or of a library that it builds on."""
    if file.startswith(_own_places()):
        return True
    installed = _INSTALLED.search(file)
    if installed:
        return installed[1] in LIBRARIES
    return file.startswith(_STANDARD_LIBRARY) or file.startswith(_python_places())


@cache
def _own_places() -> tuple[str, ...]:
    own = Path(__file__).parents[2]
    return f"{own}{os.sep}", f"{own.resolve()}{os.sep}"


@cache
def _python_places() -> tuple[str, ...]:
    import sysconfig  # takes longer to answer than everything else here

    return tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))


def _shorten(file: str) -> str:
    path = Path(file)
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else file
