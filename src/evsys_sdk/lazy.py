"""Import optional or heavy modules on first use."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import EvsysError, MissingExtraError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def import_extra(module: str, *, extra: str, needed_by: str) -> Any:
    """Import an optional dependency; MissingExtraError with the install command if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise MissingExtraError(needed_by, extra) from None
        raise EvsysError(f"{needed_by} cannot import {module}: {error}. Reinstall the extra '{extra}'.") from error
    except ImportError as error:
        raise EvsysError(f"{needed_by} cannot import {module}: {error}. Reinstall the extra '{extra}'.") from error


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package that loads each name from its module on first use.

    `modules` maps a module below the package to its names, separated by spaces; a leading dot goes up one level.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)  # cache it in the package
        return value

    return load


def find_entry_points(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group in all installed packages.

    `importlib.metadata` is imported only if a package has such entry points, because importing it is slow.
    """
    if not _is_installed(b"[evsys_sdk."):
        return ()
    from importlib.metadata import entry_points

    return entry_points(group=group)


def spare_pydantic_its_plugins() -> None:
    """Replace pydantic's plugin loader if no package has a plugin for it.

    The loader imports `importlib.metadata`, which takes a quarter of the time of a quick command.
    """
    loader = "pydantic.plugin._loader"
    if loader in sys.modules or _is_installed(b"[pydantic]"):
        return
    answer = ModuleType(loader)

    def load_whole(name: str) -> Any:
        """Load the real module for any other name; the import itself looks up `__path__`."""
        if name.startswith("__"):
            raise AttributeError(name)
        del sys.modules[loader]
        return getattr(import_module(loader), name)

    vars(answer).update(get_plugins=tuple, __getattr__=load_whole)
    sys.modules[loader] = answer


def _is_installed(section: bytes) -> bool:
    """Whether any installed package may have entry points in this section."""
    return any(_brings(folder or os.curdir, section) for folder in sys.path)


def _brings(folder: str, section: bytes) -> bool:
    """Whether a folder of `sys.path` may hold a package with entry points in this section."""
    try:
        return _mentions(folder, section, os.stat(folder).st_mtime_ns)
    except NotADirectoryError:  # an archive: assume that it has some
        return True
    except OSError:
        return False


@functools.lru_cache(maxsize=64)
def _mentions(folder: str, section: bytes, changed: int) -> bool:
    del changed  # part of the cache key: an installation changes it
    for name in os.listdir(folder):
        if name.endswith(".egg"):
            return True
        if name.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if section in file.read():
                        return True
            except OSError:  # most packages have none
                continue
    return False
