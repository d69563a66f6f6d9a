"""The format of experiment records, and their reader. Standard library only.

The module is callable because `evsys_sdk.record("name", ...)` records a training loop: importing a subpackage replaces
an attribute of the same name in its parent package.
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
