"""What a worker must import before the extensions of this process exist there too."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

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
        names = sorted({name for registry in REGISTRIES.values() for name in registry.modules_of_projects()})
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
