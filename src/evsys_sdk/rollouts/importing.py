"""Code of the user's own that a config names, e.g. an agent or a tool."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from ..paths import project_root


def import_object(module: str, name: str) -> Any:
    """An object of a module that can be imported from here, or lies below the current folder or the project root."""
    for folder in (os.getcwd(), str(project_root())):  # the installed command does not look there by itself
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that nothing there hides a library
    return getattr(importlib.import_module(module), name)
