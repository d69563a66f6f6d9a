"""Room 2: the format of what happens, and its one reader. Standard library only.

The package can be called: `evsys_sdk.record("name", ...)` records a training loop, and its name is this one's. Python
sets a package as an attribute of its parent, whatever the parent has under that name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Record(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module(f"{self.__name__.rpartition('.')[0]}.experiment.loops").record(*args, **options)


sys.modules[__name__].__class__ = _Record
