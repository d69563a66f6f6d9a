"""Params that all clients of hosted models share."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from ...config.base import MisplacedValue, Strict
from ...config.prices import Price

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Capitals only: keys have small letters, and a key that was put here by mistake must not end up in a message."""


class HostedConfig(Strict):
    """Params of a client for a hosted model."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(min_length=1)
    """The model's name, as the provider writes it."""
    base_url: str | None = None
    """Another server that speaks the same protocol. It gets no key unless `api_key_env` names one."""
    api_key_env: str | None = None
    """Environment variable that holds the key, if it is not the provider's usual one."""
    auth_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]+$")
    """Header that carries the key, if it is not the provider's usual one; `authorization` carries it as a bearer."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time one attempt may take, from sending to the last byte."""
    connect_timeout_s: float = Field(default=20.0, gt=0)
    """Longest time to wait for a connection."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is tried before it counts as failed."""
    base_delay_s: float = Field(default=1.0, ge=0)
    """Longest wait before the second attempt; it doubles with each further one."""
    max_delay_s: float = Field(default=60.0, ge=0)
    """Longest wait between attempts, unless the server asks for more."""
    deadline_s: float = Field(default=1800.0, gt=0)
    """No new attempt begins later than this after the first one failed."""
    concurrency: int = Field(default=8, ge=1)
    """Most requests at the same time."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Most requests within any minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most tokens, read and written, within any minute."""
    prices: dict[str, Price | list[Price]] = {}
    """Prices for a client that is used by itself; in an experiment, `budget.prices` is the place for them."""
    extra: dict[str, Any] = {}
    """Further fields of the request body as the provider documents them; null leaves a field out."""

    @model_validator(mode="after")
    def _check(self) -> HostedConfig:
        # Checked here and not field by field, because then a problem would be shown with its value: perhaps a secret.
        address = self.base_url
        if address is not None and not address.startswith(("http://", "https://")):
            raise MisplacedValue("should be an address. Begin it with https:// or http://.", "base_url")
        if address is not None and "@" in address.partition("://")[2].partition("/")[0]:
            hint = "Put the key into an environment variable and name that in api_key_env."
            raise MisplacedValue(f"should hold no user name or password. {hint}", "base_url")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            hint = "Write it in capitals, such as MY_API_KEY; never put the key itself here."
            raise MisplacedValue(f"should be the name of an environment variable. {hint}", "api_key_env")
        return self
