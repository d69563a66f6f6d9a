from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.registry import get_inference

from . import stand_in

if TYPE_CHECKING:
    from evsys_sdk.inference.clients.hosted import HostedClient

SECRET = "sk-Secret-0123456789-abcdef"


@dataclass(frozen=True)
class Provider:
    """A client of one provider and the stand-in it talks to."""

    kind: str
    server: stand_in.StandIn
    make: Callable[..., HostedClient]
    """The client with params of the test's own; fast retries unless they say otherwise."""

    def problem(self, message: str, code: str = "") -> dict[str, Any]:
        """The body of a refusal."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


MODELS = {"openai": "gpt-4.1", "claude": "claude-haiku-4-5", "gemini": "gemini-2.5-flash"}


@pytest.fixture
def make_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Provider]]:
    """Start the stand-in of a provider; everything is closed when the test ends."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("STAND_IN_KEY", SECRET)
    servers: list[stand_in.StandIn] = []
    clients: list[HostedClient] = []

    def start(kind: str) -> Provider:
        server = stand_in.StandIn(stand_in.openai_answer)
        servers.append(server)

        def make(**params: Any) -> HostedClient:
            quick = {"attempts": 3, "base_delay_s": 0.0, "base_url": server.url, "api_key_env": "STAND_IN_KEY"}
            clients.append(get_inference(kind)(**({"model": MODELS[kind]} | quick | params)))
            return clients[-1]

        return Provider(kind, server, make)

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.close()


@pytest.fixture
def provider(make_provider: Callable[[str], Provider]) -> Provider:
    """OpenAI; the other providers are asked by the same code."""
    return make_provider("openai")


@pytest.fixture(params=["openai", "claude", "gemini"])
def each_provider(request: pytest.FixtureRequest, make_provider: Callable[[str], Provider]) -> Provider:
    """Each of the providers in turn."""
    return make_provider(request.param)
