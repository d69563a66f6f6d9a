"""The `fireworks` kind: known by name, and refused with the reason.

Fireworks speaks an older, JSON form of the protocol through a client of its own (`fireworks-ai[training-sdk]`), whose
service has to be provisioned (trainer job, deployment, or serverless session) before a model can be made. Its backward
passes may come back without log-probabilities, and it has no alternatives per position, no time to live and no combined
save and sample. An address is therefore not enough, and an adapter that was never run against the service would be a
guess; so there is none yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ...errors import BackendError, ConfigError, Problem
from .config import TinkerConfig

_REASON = (
    "Fireworks trains through a client of its own (fireworks-ai), which speaks an older form of the protocol and "
    "needs a trainer that was provisioned with it; this version has no adapter for it"
)
_REMEDY = "Use backend.kind 'tinker' with a server that speaks the Tinker protocol, for instance `evsys serve`."


class FireworksBackend:
    """Fireworks' own training service; refused, because no address alone makes it a Tinker server."""

    name: ClassVar[str] = "fireworks"
    Config: ClassVar[type[TinkerConfig]] = TinkerConfig

    def __init__(self, **params: Any) -> None:
        self.config = self.Config(**params)

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Say so in deep validation, before anything is spent."""
        raise ConfigError(Problem(_REASON, hint=_REMEDY))

    def prepare(self, *, model: Any, run_dir: Path) -> dict[str, Any]:
        """Refuse."""
        raise BackendError(f"{_REASON}. {_REMEDY}")

    def teardown(self, handles: dict[str, Any]) -> None:
        """Nothing was made."""
