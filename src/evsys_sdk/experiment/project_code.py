"""What a worker must import before the extensions of this process exist there too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from ..config import ExperimentConfig
from ..errors import ConfigError
from ..registry import REGISTRIES
from ..settings import import_project_code

_NAMED_BY_ROWS: Final = ("verifier", "agent")
_NO_REWARDS: Final = ("sft", "mock_sft", "local_sft")
"""Algorithms that ask no verifier."""


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """Modules that registered something here, and where they were found."""

    modules: tuple[tuple[str, str | None], ...]
    """Name, and file where it has one."""
    path: tuple[str, ...]
    """`sys.path` of this process."""

    @classmethod
    def of_this_process(cls) -> ProjectCode:
        extensions = [one for registry in REGISTRIES.values() for one in registry.extensions_of_projects().values()]
        names = sorted({extension.__module__ for extension in extensions})
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
    """Whether arms of this experiment may run code that is not the SDK's: a project's, or an installed package's.

    What the config does not name is not run, except what rows and tasks may name, where any are scored.
    """
    entries = config.metadata.benchmark
    if any(entry.agent_import_path is not None for entry in entries):
        return True
    named = set(_texts(config.model_dump(mode="json")))
    scores_rows = bool(entries) or any(run.algorithm.kind not in _NO_REWARDS for run in config.all_runs())
    for kind, registry in REGISTRIES.items():
        foreign = registry.extensions_of_projects().keys() | registry.names_of_packages()
        if foreign & named or (foreign and scores_rows and kind in _NAMED_BY_ROWS):
            return True
    return False


def registered_later() -> list[str]:
    """Extensions that exist here because of what was called, not of what was imported; no other process has them."""
    return sorted(name for registry in REGISTRIES.values() for name in registry.names_registered_later())


def _texts(node: Any) -> Iterator[str]:
    """Every text in a config, at any depth."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in cast("dict[str, Any]", node).values():
            yield from _texts(value)
    elif isinstance(node, list):
        for value in cast("list[Any]", node):
            yield from _texts(value)
