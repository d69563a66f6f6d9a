"""`KEY=VALUE` on the command line, the value as YAML reads it."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError


def read_params(pairs: tuple[str, ...], option: str) -> dict[str, Any]:
    """The params that an option was given, by name."""
    import yaml

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} takes KEY=VALUE (got {pair!r}).")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option} {key}: {value!r} is no YAML value. Put quotes around a text.") from None
    return found
