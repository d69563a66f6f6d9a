"""What a server is started with. Every limit is finite, so that no client can make it grow without end."""

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
    """One server."""

    state_dir: Path
    """Where saved weights are kept; they survive a restart."""
    models: tuple[str, ...] = ()
    """Base models that clients may ask for; the mock backend has its own."""
    backend: str = "mock"
    backend_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    api_key: str | None = None
    """Clients must send it; None lets everyone in who can connect."""
    feedback_key: str | None = None
    """A key that only sends feedback; what it is given to can do nothing else here."""
    allow_anyone: bool = False
    """Serve other machines although there is no key."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer that the `tinker` package loads on the client's machine."""
    delay_ms: float = 0.0
    """Time that every operation takes at least: for benchmarks and tests only."""
    max_models: int = 16
    """Models in training at once."""
    max_queue: int = 256
    """Requests of one model that wait or whose result was not fetched yet."""
    max_samples: int = 2000
    """Sampling requests of all clients that wait or whose result was not fetched yet; one session may have half."""
    samples_at_once: int = 40
    """Samples that the backend draws at the same time, of all clients."""
    max_tokens: int = 1024
    """Length of a sample for which the client sets no limit."""
    max_request_mb: float = 64.0
    idle_s: float = 300.0
    """A session without any heartbeat for so long is ended."""
    gap_s: float = 120.0
    """How long a request waits for an earlier one of the same model that has not arrived."""
    grace_s: float = 60.0
    """How long a shutdown waits for what is being worked on."""
    poll_s: float = 30.0
    """How long a client that asks for a result is kept waiting before it has to ask again."""
    read_s: float = 60.0
    """How long a request may take to arrive."""
    head_s: float = 10.0
    """How long a connection may be open without the head of a request, which is what says who sends it."""
    max_connections: int = 4096
    """Connections at once; requests beyond are refused."""
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
    def max_samples_of_one(self) -> int:
        """Sampling requests of one session."""
        # half, so that no session alone keeps all others out
        return max(1, self.max_samples // 2)

    @property
    def max_held_bytes(self) -> int:
        """Of all requests that are read, wait or are worked on."""
        return 16 * self.max_request_bytes


@functools.lru_cache(maxsize=256)  # asked for every request, about a few names
def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean anything
