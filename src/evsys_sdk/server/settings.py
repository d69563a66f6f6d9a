"""Options of a server. Every limit is finite, so that clients cannot exhaust it."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError

_MOCK_MODEL: Final = "tiny"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Options of one server."""

    state_dir: Path
    """Folder of saved weights; they survive a restart."""
    models: tuple[str, ...] = ()
    """Base models on offer; the mock backend has its own."""
    backend: str = "mock"
    backend_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    host: str = "127.0.0.1"
    port: int = 8000
    """0 selects a free port."""
    api_key: str | None = None
    """Required key of clients; None admits everyone who can connect."""
    feedback_key: str | None = None
    """A key that may only send feedback."""
    allow_anyone: bool = False
    """Serve other machines without a key."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer for the client's `tinker` package."""
    max_models: int = 16
    """Maximum number of models in training."""
    max_queue: int = 256
    """Maximum number of a model's requests that wait or whose result was not fetched."""
    max_samples: int = 2000
    """Maximum number of sampling requests that wait or whose result was not fetched; one session may have half."""
    samples_at_once: int = 40
    """Samples drawn concurrently for all clients."""
    max_tokens: int = 1024
    """Default length of a sample."""
    max_request_mb: float = 64.0
    idle_s: float = 300.0
    """Sessions without a heartbeat for this long are ended."""
    gap_s: float = 120.0
    """How long a request waits for an earlier one of its model."""
    grace_s: float = 60.0
    """How long a shutdown waits for running operations."""
    poll_s: float = 30.0
    """How long a request for a result waits before the client must repeat it."""
    read_s: float = 60.0
    """Time limit for receiving a request."""
    head_s: float = 10.0
    """Time limit for the head of a request, before authentication."""
    max_connections: int = 4096
    """Maximum number of connections; more are refused."""
    max_head_bytes: int = 65_536

    def __post_init__(self) -> None:
        if not self.models and self.backend == "mock":
            object.__setattr__(self, "models", (_MOCK_MODEL,))  # the class is frozen
        if not self.models:
            raise ConfigError("the server has no model to offer. Name one or more with --model.")
        if self.feedback_key and self.feedback_key == self.api_key:
            raise ConfigError("the key for feedback is the server's own key. Choose another, or leave it out.")
        if not self.api_key and not self.allow_anyone and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} lets other machines in, and there is no API key. Set EVSYS_SERVE_API_KEY (or "
                "--api-key-file), bind to 127.0.0.1, or allow everyone with --allow-anyone."
            )

    @property
    def max_request_bytes(self) -> int:
        return int(self.max_request_mb * 1e6)

    @property
    def max_samples_per_session(self) -> int:
        """Maximum number of sampling requests of one session."""
        # half, so that one session cannot block all others
        return max(1, self.max_samples // 2)

    @property
    def max_held_bytes(self) -> int:
        """Maximum bytes of all requests being read, waiting or running."""
        return 16 * self.max_request_bytes


@functools.lru_cache(maxsize=256)  # called for every request, with few names
def is_loopback(host: str) -> bool:
    """Whether `host` accepts connections from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # other names may resolve to anything
