"""Names of stores and systems, which are folders and parts of names of datasets as well."""

from __future__ import annotations

import re

from ..errors import DataError, show

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Refuse a name that cannot be a folder."""
    if not _NAME.fullmatch(name):
        raise DataError(f"{what} cannot be called {show(name)}. Use small letters, digits, '_' and '-', 64 at most.")
    return name
