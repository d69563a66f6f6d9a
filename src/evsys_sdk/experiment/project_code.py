"""What a worker must import before the extensions of this process exist there too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..config import ExperimentConfig
from ..errors import ConfigError
from ..registry import REGISTRIES
from ..settings import import_project_code


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """Modules that registered something here, and where they were found."""

    modules: tuple[tuple[str, str | None], ...]
    """Name, and file where it has one."""
    path: tuple[str, ...]
    """`sys.path` of this process."""

    @classmethod
    def of_this_process(cls) -> ProjectCode:
        names = sorted({extension.__module__ for extension in _extensions()})
        found = ((name, getattr(sys.modules.get(name), "__file__", None)) for name in names)
        return cls(tuple(found), tuple(sys.path))

    @property
    def unreachable(self) -> list[str]:
        """Modules that no other process can import: the script itself, or what was typed at a prompt."""
        return [name for name, file in self.modules if name == "__main__" or file is None]

    def load(self) -> None:
        """Import all of it, in a process where nothing has been registered yet."""
        for entry in self.path:
            if entry not in sys.path:
                sys.path.append(entry)
        for name, file in self.modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                if file is None or not Path(file).is_file():
                    raise ConfigError(f"a worker cannot import '{name}', which registers extensions.") from None
                import_project_code([file])


def runs_own_code(config: ExperimentConfig) -> bool:
    """Whether arms of this experiment may run code that is not the SDK's: a project's, or an installed package's."""
    if _extensions():
        return True
    of_packages = {name for registry in REGISTRIES.values() for name in registry.names_of_packages()}
    return any(
        (key == "kind" and value in of_packages) or (key == "agent_import_path" and value is not None)
        for key, value in _fields(config.model_dump(mode="json"))
    )


def _extensions() -> list[Any]:
    return [extension for registry in REGISTRIES.values() for extension in registry.extensions_of_projects()]


def registered_later() -> list[str]:
    """Extensions that exist here because of what was called, not of what was imported; no other process has them."""
    return sorted(name for registry in REGISTRIES.values() for name in registry.names_registered_later())


def _fields(node: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            if isinstance(value, str | None):
                yield key, value
            else:
                yield from _fields(value)
    elif isinstance(node, list):
        for value in cast("list[Any]", node):
            yield from _fields(value)
