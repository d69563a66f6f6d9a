"""The modules that a worker must import to have the extensions of this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from ...config import ExperimentConfig
from ...errors import ConfigError
from ...registry import REGISTRIES
from ...settings import import_project_code

_NAMED_BY_ROWS: Final = ("verifier", "agent", "environment", "inference_client")
"""Kinds of extensions that a task may name."""
_NO_REWARDS: Final = ("sft", "mock_sft", "local_sft")
"""Algorithms that use no verifier."""


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """Modules that registered extensions in this process, and where they were imported from."""

    modules: tuple[tuple[str, str | None], ...]
    """Name and file of each module; None for a module without a file."""
    path: tuple[str, ...]
    """`sys.path` of this process."""

    @classmethod
    def of_this_process(cls) -> ProjectCode:
        extensions = [extension for it in REGISTRIES.values() for extension in it.extensions_of_projects().values()]
        names = sorted({extension.__module__ for extension in extensions})
        modules = tuple((name, getattr(sys.modules.get(name), "__file__", None)) for name in names)
        return cls(modules, tuple(sys.path))

    @classmethod
    def for_workers(cls, config: ExperimentConfig) -> ProjectCode:
        """The modules that workers of this experiment import: importable ones, and others only if they are used."""
        may_be_used, code = _usable_by(config), cls.of_this_process()
        used = {
            extension.__module__
            for kind, registry in REGISTRIES.items()
            for name, extension in registry.extensions_of_projects().items()
            if may_be_used(kind, name)
        }
        needed = (module for module in code.modules if module[0] in used or _can_be_imported(*module))
        return replace(code, modules=tuple(needed))

    @property
    def unreachable(self) -> list[str]:
        """Modules that no other process can import, such as the running script or an interactive session."""
        return [name for name, file in self.modules if not _can_be_imported(name, file)]

    def load(self) -> None:
        """Import all modules in a new process."""
        for entry in self.path:
            if entry not in sys.path:  # at the end, so that the worker's own packages come first
                sys.path.append(entry)
        for name, file in self.modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                # A file imported by its path may lie outside `sys.path`.
                if file is None or not Path(file).is_file():
                    raise ConfigError(f"a worker cannot import '{name}', which registers extensions.") from None
                import_project_code([file])


def runs_own_code(config: ExperimentConfig) -> bool:
    """Whether arms of this experiment may run code of the project or of an installed package.

    That is code which the config names, and code which rows and tasks may name if any are scored.
    """
    if any(entry.agent_import_path is not None for entry in config.metadata.benchmark):
        return True
    if any(stage.kind == "script" for run in config.all_runs() for stage in run.stages()):
        return True
    may_be_used = _usable_by(config)
    return any(
        any(may_be_used(kind, name) for name in registry.extensions_of_projects().keys() | registry.names_of_packages())
        for kind, registry in REGISTRIES.items()
    )


def find_registered_later(config: ExperimentConfig) -> list[str]:
    """The extensions of an experiment that were registered by a call instead of an import; no worker has them."""
    may_be_used = _usable_by(config)
    return sorted(
        name
        for kind, registry in REGISTRIES.items()
        for name in registry.names_registered_later()
        if may_be_used(kind, name)
    )


def _usable_by(config: ExperimentConfig) -> Callable[[str, str], bool]:
    """A test whether arms may use an extension: the config names it, or a scored row may name it."""
    texts = set(_texts(config.model_dump(mode="json")))
    named = texts.union(*(text.split(":") for text in texts))  # `client:model`
    scores_rows = bool(config.metadata.benchmark) or any(
        run.algorithm.kind not in _NO_REWARDS for run in config.all_runs()
    )
    return lambda kind, name: name in named or (scores_rows and kind in _NAMED_BY_ROWS)


def _can_be_imported(name: str, file: str | None) -> bool:
    return name != "__main__" and file is not None


def _texts(node: Any) -> Iterator[str]:
    """Every string in a config, at any depth."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in cast("dict[str, Any]", node).values():
            yield from _texts(value)
    elif isinstance(node, list):
        for value in cast("list[Any]", node):
            yield from _texts(value)
