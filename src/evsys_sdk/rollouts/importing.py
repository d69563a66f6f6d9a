"""Code of the user's own that a config names, e.g. an agent or a tool."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def import_object(module: str, name: str) -> Any:
    """An object of a module that can be imported from here, or lies below the current folder."""
    if (here := os.getcwd()) not in sys.path:  # the installed command does not look there by itself
        sys.path.append(here)  # last, so that nothing there hides a library
    return getattr(importlib.import_module(module), name)
