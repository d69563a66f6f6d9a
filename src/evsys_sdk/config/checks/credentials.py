"""Credentials that stand in a config: a file is committed, copied and recorded, and an environment variable is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...errors import Problem
from ...redact import is_literal_secret

_HINT = "Put it into an environment variable, and let the class that needs it read that variable."


def find_literal_credentials(node: Any, path: str = "", key: str = "") -> Iterator[Problem]:
    """A problem for each value that is a credential by its name or its shape."""
    if isinstance(node, Mapping):
        for name, value in cast("Mapping[Any, Any]", node).items():
            yield from find_literal_credentials(value, f"{path}.{name}" if path else str(name), str(name))
    elif isinstance(node, list):
        for at, value in enumerate(cast("list[Any]", node)):
            yield from find_literal_credentials(value, f"{path}[{at}]", key)
    elif isinstance(node, str) and is_literal_secret(node, key):
        yield Problem("a credential must not stand in a config", path=path, value="[redacted]", hint=_HINT)
