"""What our own server answers becomes traces, by any chat API, streamed or not, and no answer waits for that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from evsys_sdk.loop.traces.request_log import RequestLog
from evsys_sdk.loop.traces.store import LiveStore, TraceStore
from evsys_sdk.server.app import App
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings
from evsys_sdk.server.trace_log import ServedAnswer

CHAT = "/v1/chat/completions"
SAID = {"role": "user", "content": "mail ann@example.com"}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [SAID], "max_tokens": 4, "metadata": {"conversation_id": "c7"}},
    "/v1/messages": {"messages": [SAID], "max_tokens": 4},
    "/v1/responses": {"input": [SAID], "max_output_tokens": 4},
}


@asynccontextmanager
async def open_server(folder: Path) -> AsyncGenerator[tuple[httpx.AsyncClient, Service]]:
    log = RequestLog(LiveStore("served"))
    service = Service.start(ServeSettings(state_dir=folder / "state", models=("tiny",)), None, log)
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
            yield http, service
    finally:
        await service.close()
        log.close()


def stored() -> list[dict[str, Any]]:
    return list(TraceStore("served").read())


async def test_what_the_server_says_by_any_api_is_a_trace(project: Path) -> None:
    ids: list[str] = []
    async with open_server(project) as (http, _):
        for path, fields in ASKED.items():
            for stream in (False, True):
                body = {"model": "tiny", "temperature": 0, "stream": stream, **fields}
                answer = await http.post(path, json=body)
                assert answer.status_code == 200, answer.text
                if not stream:
                    ids.append(answer.json()["id"])
        for id in ids:
            assert (await http.post("/v1/feedback", json={"response_id": id, "value": True})).status_code == 200
        assert (await http.post(CHAT, json={"model": "none"})).status_code >= 400
        assert (await http.get("/v1/models")).status_code == 200
    traces = stored()
    assert len(traces) == 6
    assert len({trace["id"] for trace in traces}) == 6
    assert len({json.dumps([trace["messages"], trace["usage"], trace["model"]]) for trace in traces}) == 1
    assert [trace["messages"][-1]["role"] for trace in traces] == ["assistant"] * 6
    assert traces[0]["conversation"] == "c7"
    assert "ann@example.com" not in json.dumps(traces)


async def test_a_stream_whose_reader_leaves_is_no_trace(project: Path) -> None:
    async with open_server(project) as (http, service):
        body = {"model": "tiny", "messages": [SAID], "max_tokens": 3000, "stream": True}
        task = asyncio.ensure_future(http.post(CHAT, json=body))
        while not service.running:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert stored() == []


def test_a_request_that_is_too_long_is_no_trace(project: Path) -> None:
    log = RequestLog(LiveStore("served"))
    log.keep(ServedAnswer("a", "tiny", [SAID], {}, {"choices": []}), 5_000_000)
    log.close()
    assert stored() == []
