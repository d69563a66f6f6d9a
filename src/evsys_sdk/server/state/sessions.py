"""Sessions: the models and samplers of a client, and its last heartbeat."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from ...backends.client import SamplingClient
from ..answer import Refusal
from .model import TrainedModel

# Ids of ended sessions, for a precise error message.
_REMEMBERED: Final = 10_000
_MOST_SESSIONS: Final = 10_000
_MOST_SAMPLERS: Final = 64
"""Maximum number of samplers per session: one per step would exhaust memory."""


@dataclass(slots=True)
class Sampler:
    """Frozen weights of a session's sampler."""

    sampler_id: str
    session_id: str
    base_model: str
    model_path: str | None
    client: SamplingClient


@dataclass(slots=True)
class ClientSession:
    """The session of one client."""

    session_id: str
    display_name: str | None
    user_metadata: dict[str, Any] | None
    last_seen: float = field(default_factory=time.monotonic)
    models: dict[str, TrainedModel] = field(default_factory=dict[str, TrainedModel])
    samplers: dict[str, Sampler] = field(default_factory=dict[str, Sampler])

    def keep(self, sampler: Sampler) -> None:
        """Store a sampler, and release the least recently used one beyond the limit."""
        self.samplers[sampler.sampler_id] = sampler
        while len(self.samplers) > _MOST_SAMPLERS:
            del self.samplers[next(iter(self.samplers))]

    @property
    def busy(self) -> bool:
        return any(model.busy for model in self.models.values())


@dataclass(slots=True)
class Sessions:
    """All sessions."""

    _open: dict[str, ClientSession] = field(default_factory=dict[str, ClientSession])
    _ended: dict[str, None] = field(default_factory=dict[str, None])

    def create(self, *, display_name: str | None, user_metadata: dict[str, Any] | None) -> ClientSession:
        """A session with a globally unique id."""
        if len(self._open) >= _MOST_SESSIONS:
            raise Refusal(429, f"{_MOST_SESSIONS} sessions are open here. Close some.", retry_after_s=5)
        session = ClientSession(uuid.uuid4().hex, display_name, user_metadata)
        self._open[session.session_id] = session
        return session

    def get(self, session_id: str) -> ClientSession:
        """A session; counts as a heartbeat."""
        if session := self._session_of(session_id):
            return session
        status = 410 if session_id in self._ended else 404
        raise Refusal(status, f"there is no session {session_id!r}: it has ended, or the server was restarted.")

    def model(self, model_id: str) -> TrainedModel:
        """A model in training."""
        if (session := self._session_of(model_id)) and (model := session.models.get(model_id)):
            return model
        raise Refusal(
            404,
            f"there is no model {model_id!r}: its session has ended, or the server restarted. Continue from saved "
            "weights with a new training client.",
        )

    def sampler(self, sampler_id: str) -> Sampler:
        """The sampler of an id."""
        if (session := self._session_of(sampler_id)) and (sampler := session.samplers.pop(sampler_id, None)):
            session.samplers[sampler_id] = sampler  # most recently used last
            return sampler
        raise Refusal(
            404,
            f"there is no sampler {sampler_id!r}: its session has ended, the server was restarted, or the session "
            f"used {_MOST_SAMPLERS} others since. Weights saved under a name can be opened again.",
        )

    def _session_of(self, name: str) -> ClientSession | None:
        """The session whose id starts this name; counts as a heartbeat."""
        if session := self._open.get(name.partition(":")[0]):
            session.last_seen = time.monotonic()
        return session

    def touch(self, request_id: str) -> None:
        """Count a request for a result as a heartbeat."""
        self._session_of(request_id)

    def all(self) -> list[ClientSession]:
        return list(self._open.values())

    def idle(self, for_s: float) -> list[ClientSession]:
        """Sessions without a heartbeat and without running operations."""
        before = time.monotonic() - for_s
        return [session for session in self._open.values() if session.last_seen < before and not session.busy]

    def end(self, session_id: str) -> ClientSession | None:
        """Remove a session; its id is remembered as ended."""
        self._ended[session_id] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return self._open.pop(session_id, None)
