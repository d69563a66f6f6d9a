"""Secrets out of what is recorded.

A config may hold a key in its params, or a URL with a password. Records, event files and trackers outlive the run and
travel, so a value is replaced when its name says that it is a secret, or when it is the value of a secret in the
environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"(^|[_\-.])(api[_\-]?key|access[_\-]?key|private[_\-]?key|secret([_\-]?key)?|password|passwd|passphrase"
    r"|credentials?|authorization|bearer|cookie|token)$",
    re.IGNORECASE,
)
_TEXT_TOKEN = re.compile(
    r"(^|_)(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|think|special)_token$", re.IGNORECASE
)
"""Names that end in `token` and mean a piece of text."""
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_SHORTEST_SECRET = 8
"""Shorter values of environment variables would also be found in harmless text."""


def redact(value: Any, name: str = "") -> Any:
    """A copy of JSON-like data without its secrets."""
    if isinstance(value, Mapping):
        below = name if is_secret_name(name) else ""  # everything below `credentials:` is a secret, whatever its name
        return {key: redact(inner, below or str(key)) for key, inner in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [redact(inner, name) for inner in cast(list[Any], value)]
    if not isinstance(value, str) or not value:
        return value
    return REDACTED if is_secret_name(name) else redact_text(value)


def redact_text(text: str) -> str:
    """`text` without passwords in URLs and without the values of secret environment variables."""
    text = _URL_PASSWORD.sub(REDACTED, text)
    for secret in _environment_secrets():
        text = text.replace(secret, REDACTED)
    return text


def hide(text: str, *secrets: str | None) -> str:
    """`text` without the given secrets: a server may repeat the key it refuses."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _TEXT_TOKEN.search(name)


def _environment_secrets() -> list[str]:
    found = {value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= _SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
