"""Importing what is optional or heavy, when it is first needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .errors import EvsysError, MissingExtraError


def import_extra(module: str, *, extra: str, needed_by: str) -> Any:
    """The module of an optional dependency; a missing one is an error that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise MissingExtraError(needed_by, extra) from None
        raise EvsysError(f"{needed_by} cannot import {module}: {error}. Reinstall the extra '{extra}'.") from error
    except ImportError as error:
        raise EvsysError(f"{needed_by} cannot import {module}: {error}. Reinstall the extra '{extra}'.") from error


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package's front: each name is loaded from its module on first use.

    `modules` has the names of each module below the package, separated by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
