"""OpenAI's API on a model of torch: whole and streamed answers agree, and many clients are drawn together."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.server.app import App  # noqa: E402
from evsys_sdk.server.service import Service  # noqa: E402
from evsys_sdk.server.settings import ServeSettings  # noqa: E402


def text_of(stream: str) -> str:
    events = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_whole_and_streamed_answers_agree(tmp_path: Path, llama: str) -> None:
    params = {"device": "cpu", "exact": True}
    settings = ServeSettings(state_dir=tmp_path, backend="local", models=(llama,), backend_params=params)
    service = Service.start(settings)
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as http:

            async def ask(number: int, **fields: Any) -> httpx.Response:
                messages = [{"role": "user", "content": f"hello {number}"}]
                body = {"model": llama, "messages": messages, "max_tokens": 20, "temperature": 0, **fields}
                answer = await http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                return answer

            whole = [reply.json() for reply in await asyncio.gather(*(ask(number) for number in range(8)))]
            streamed = [
                reply.text for reply in await asyncio.gather(*(ask(number, stream=True) for number in range(8)))
            ]
            content = [reply["choices"][0]["message"]["content"] for reply in whole]
            assert [text_of(chunk) for chunk in streamed] == content
            scored = (await ask(0, logprobs=True, top_logprobs=3)).json()["choices"][0]["logprobs"]["content"]
            assert all(
                score["logprob"] == pytest.approx(score["top_logprobs"][0]["logprob"], abs=1e-3) for score in scored
            )
            seeded = {"temperature": 1.0, "n": 2, "seed": 7}
            first, again = [(await ask(1, **seeded)).json()["choices"] for _ in range(2)]
            assert [sample["message"]["content"] for sample in first] == [
                sample["message"]["content"] for sample in again
            ]
    finally:
        await service.close()
