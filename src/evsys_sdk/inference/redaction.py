"""Keys out of messages: a server may repeat the key it refuses, and messages travel into logs and records."""

from __future__ import annotations

import os

HIDDEN = "[redacted]"
_SHORTEST_KEY = 8
"""Shorter values would also be found in harmless text."""


def hide(text: str, *secrets: str | None) -> str:
    """`text` without the given secrets."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return text


def hide_environment_keys(text: str) -> str:
    """`text` without the values of environment variables that hold keys, for messages of other people's clients."""
    endings = ("_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
    keys = (value for name, value in os.environ.items() if name.upper().endswith(endings))
    return hide(text, *sorted((key for key in keys if len(key) >= _SHORTEST_KEY), key=len, reverse=True))
