"""Importing what is optional or heavy, when it is first needed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import EvsysError, MissingExtraError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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

    `modules` has the names of each module below the package, separated by spaces; a dot in front goes up by one.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def find_entry_points(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group, in every package that Python finds.

    `importlib.metadata` takes longer to import than most commands take to run, and hardly anyone has such a package.
    """
    if not any(_brings_any(folder or os.curdir) for folder in sys.path):
        return ()
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _brings_any(folder: str) -> bool:
    """Whether a place that Python imports from may hold a package with entry points for us."""
    try:
        return _mentions_us(folder, os.stat(folder).st_mtime_ns)
    except NotADirectoryError:  # an archive: it can be looked into, by who knows how
        return True
    except OSError:
        return False


@functools.lru_cache(maxsize=64)
def _mentions_us(folder: str, changed: int) -> bool:
    del changed  # a part of the key: what was found holds until something is installed
    for name in os.listdir(folder):
        if name.endswith(".egg"):
            return True
        if name.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if b"[evsys_sdk." in file.read():
                        return True
            except OSError:  # most packages have none
                continue
    return False
