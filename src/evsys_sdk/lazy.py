"""Importing what is optional, when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import EvsysError, MissingExtraError


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
