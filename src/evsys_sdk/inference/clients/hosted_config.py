"""Params that all clients of hosted models share."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from ...config.base import Strict
from ..prices import Price

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class HostedConfig(Strict):
    """Params of a client for a hosted model."""

    model: str = Field(min_length=1)
    """The model's name, as the provider writes it."""
    base_url: str | None = None
    """Another server that speaks the same protocol. It gets no key unless `api_key_env` names one."""
    api_key_env: str | None = None
    """Environment variable that holds the key, if it is not the provider's usual one."""
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
    """No new attempt begins later than this after the first."""
    concurrency: int = Field(default=8, ge=1)
    """Most requests at the same time."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Most requests within any minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most tokens, read and written, within any minute."""
    prices: dict[str, Price | list[Price]] = {}
    """US dollars per million tokens for models that have no built-in price, or another one for you."""
    extra: dict[str, Any] = {}
    """Further fields of the request body as the provider documents them; null leaves a field out."""

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("should be an address. Begin it with https:// or http://.")
        if value is not None and "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError("should hold no user name or password. Put the key into a variable for api_key_env.")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _variable_name(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError("should be the name of an environment variable. Never put the key itself here.")
        return value
