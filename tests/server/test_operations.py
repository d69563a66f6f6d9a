"""What an operator sees of a server: health, readiness, metrics, request ids and the access log."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from evsys_sdk.server.app import App
from evsys_sdk.server.operations import Operations
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings

HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service.start(ServeSettings(state_dir=tmp_path, api_key="tml-key"))
    yield service
    await service.close()


@pytest_asyncio.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    app = Operations(App(service), ready=lambda: "draining" if service.draining else "", gauges=service.gauges)
    transport = httpx.ASGITransport(app=app)
    headers = {"authorization": "Bearer tml-key"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


async def test_metrics_count_requests_by_route_and_tokens(http: httpx.AsyncClient) -> None:
    usage = (await http.post(CHAT, json=HELLO)).json()["usage"]
    await http.post(CHAT, json={**HELLO, "stream": True})
    await http.get("/v1/models/tiny")
    await http.get("/v1/models/nobody")
    answer = await http.get("/metrics", headers={"authorization": ""})
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    counted = 'evsys_http_requests_total{method="%s",route="%s",status="%d"}'
    assert metrics[counted % ("POST", CHAT, 200)] == "2"
    assert metrics[counted % ("GET", "/v1/models/{name}", 200)] == "1"
    assert metrics[counted % ("GET", "/v1/models/{name}", 404)] == "1"
    assert metrics[f'evsys_http_request_duration_seconds_bucket{{route="{CHAT}",le="+Inf"}}'] == "2"
    assert int(metrics["evsys_prompt_tokens_total"]) == 2 * usage["prompt_tokens"]
    assert metrics["evsys_http_requests_in_progress"] == "0"
    assert all(re.fullmatch(r"[a-z_]+(\{.*\})?", name) for name in metrics)


async def test_health_and_readiness_need_no_key_and_tell_a_drain(http: httpx.AsyncClient, service: Service) -> None:
    no_key = {"authorization": ""}
    assert (await http.get("/ready", headers=no_key)).json() == {"status": "ready"}
    assert (await http.get(CHAT, headers=no_key)).status_code == 401
    service.draining = True
    ready = await http.get("/ready", headers=no_key)
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (await http.get("/health", headers=no_key)).json() == {"status": "ok"}
    assert (await http.post(CHAT, json=HELLO)).status_code == 503


async def test_a_request_keeps_its_id(http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("evsys_sdk.server.operations")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger.name):
        response = await http.post(CHAT, json=HELLO, headers={"x-request-id": "mine-1"})
        unknown = await http.post(CHAT, json={**HELLO, "model": "nobody"}, headers={"x-request-id": "a b\tc"})
    logger.removeHandler(caplog.handler)
    assert response.headers["x-request-id"] == "mine-1"
    assert re.fullmatch("[0-9a-f]{16}", unknown.headers["x-request-id"])
    lines = [record.getMessage() for record in caplog.records]
    assert any(f'"POST {CHAT}" 200 ' in line and "id=mine-1" in line for line in lines)
    assert any(f'"POST {CHAT}" 404 ' in line and unknown.headers["x-request-id"] in line for line in lines)
