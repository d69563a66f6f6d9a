"""What our own server answers becomes traces, streamed or not, and no answer waits for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk.loop.traces.request_log import Application, RequestLog
from evsys_sdk.loop.traces.store import LiveStore, TraceStore
from evsys_sdk.server.app import App
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "mail ann@example.com"}], "max_tokens": 4}


def client_of(app: Application) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)


def stored() -> list[dict[str, Any]]:
    return list(TraceStore("served").read())


async def test_what_the_server_says_is_a_trace(project: Path) -> None:
    service, log = (
        Service.start(ServeSettings(state_dir=project / "state", models=("tiny",))),
        RequestLog(LiveStore("served")),
    )
    answers: list[str] = []
    try:
        async with client_of(log.wrap(App(service))) as http:
            for stream in (False, True):
                more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
                answer = await http.post("/v1/chat/completions", json={**ASKED, **more, "temperature": 0})
                assert answer.status_code == 200
                answers.append(answer.text)
            assert (await http.post("/v1/chat/completions", json={"model": "none"})).status_code >= 400
            assert (await http.get("/v1/models")).status_code == 200
    finally:
        await service.close()
        log.close()
    plain, streamed = stored()
    said = json.loads(answers[0])["choices"][0]["message"]["content"]
    assert plain["messages"][1]["content"] == streamed["messages"][1]["content"] == said
    assert plain["usage"] == streamed["usage"]
    assert plain["id"] != streamed["id"]
    assert all(one["model"] == "tiny" and one["time"] > 1.7e9 for one in (plain, streamed))
    assert "ann@example.com" not in json.dumps(plain)


def pieces(*deltas: dict[str, Any], reason: str | None = "stop") -> list[bytes]:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": one, "finish_reason": None} for one in deltas]
    if reason:
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    chunks = [{"id": "x", "model": "m", "choices": [one]} for one in choices]
    return [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks] + [b"data: [DONE]\n\n"]


def answering(*parts: bytes) -> Application:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


async def listen_to(*parts: bytes, **asked: Any) -> list[dict[str, Any]]:
    log = RequestLog(LiveStore("served"))
    async with client_of(log.wrap(answering(*parts))) as http:
        answer = await http.post("/v1/chat/completions", json={**ASKED, **asked})
    log.close()
    assert answer.content == b"".join(parts)
    return stored()


async def test_calls_of_tools_are_put_together(project: Path) -> None:
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    more = [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"city"', ': "Rome"}')]
    [trace] = await listen_to(*pieces({"content": "Wait."}, {"tool_calls": [first]}, *more), stream=True)
    message = trace["messages"][-1]
    assert message["content"] == "Wait."
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}


@pytest.mark.parametrize(
    ("parts", "stream"),
    [
        (pieces({"content": "half"}, reason=None), True),
        ([b"data: {\n\n"], True),
        ([b"not json"], False),
        ([b'{"choices": []}'], False),
        ([b"x" * 5_000_000], False),
    ],
)
async def test_what_is_no_whole_answer_is_no_trace(project: Path, parts: list[bytes], stream: bool) -> None:
    assert await listen_to(*parts, stream=stream) == []
