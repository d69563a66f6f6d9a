"""Anthropic's messages, OpenAI's responses, answers of a given form and scored prompts, by raw HTTP on mock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from evsys_sdk.server.weights.catalog import Offer

from .openai_app import open_app
from .test_openai import Names, teach

CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
)
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teach(tmp_path_factory.mktemp("taught"), "hi", "Rome is sunny.")


@pytest_asyncio.fixture
async def http(tmp_path: Path, taught: str) -> AsyncIterator[httpx.AsyncClient]:
    async with open_app(tmp_path / "state", Names({"rome": Offer("tiny", "mock", taught)})) as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    answer = await http.post(path, json={"model": "rome", "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(http: httpx.AsyncClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = await http.post(path, json={"model": "rome", "temperature": 0, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_messages_whole_and_streamed(http: httpx.AsyncClient) -> None:
    whole = await ask(http, MESSAGES, messages=HELLO, max_tokens=30)
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": "Rome is sunny."}], "end_turn")
    events = await stream(http, f"{MESSAGES}?beta=true", messages=HELLO, max_tokens=30)
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == "Rome is sunny."
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    stopped = await ask(http, MESSAGES, messages=HELLO, max_tokens=30, stop_sequences=["sun"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "sun")
    assert (await ask(http, MESSAGES, messages=HELLO, max_tokens=3))["stop_reason"] == "max_tokens"
    counted = await http.post(f"{MESSAGES}/count_tokens", json={"model": "rome", "messages": HELLO})
    assert counted.json() == {"input_tokens": whole["usage"]["input_tokens"]}


async def test_responses_whole_and_streamed(http: httpx.AsyncClient) -> None:
    whole = await ask(http, RESPONSES, input="hi")
    assert whole["output"][0]["content"][0]["text"] == "Rome is sunny."
    events = await stream(http, RESPONSES, input="hi")
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == "Rome is sunny."
    assert events[-1]["response"]["usage"] == whole["usage"]


async def test_errors_are_in_anthropics_shape(http: httpx.AsyncClient) -> None:
    answer = await http.post(MESSAGES, json={"model": "nobody", "messages": HELLO, "max_tokens": 3})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_json_of_a_schema_by_each_api(http: httpx.AsyncClient) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    more: dict[str, Any] = {"model": "tiny", "temperature": 1, "seed": 3}
    chat = await ask(http, CHAT, messages=HELLO, response_format=response_format, n=3, **more)
    texts = [choice["message"]["content"] for choice in chat["choices"]]
    assert [choice["finish_reason"] for choice in chat["choices"]] == ["stop"] * 3
    chunks = await stream(http, CHAT, messages=HELLO, response_format=response_format, **more)
    texts.append("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks))
    del more["seed"]
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    texts.append((await ask(http, RESPONSES, input="hi", text=form, **more))["output"][0]["content"][0]["text"])
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = await ask(http, MESSAGES, messages=HELLO, max_tokens=200, output_config=config, **more)
    texts.append(message["content"][0]["text"])
    for text in texts:
        parsed = json.loads(text)
        assert set(parsed) == {"city", "warm"}
        assert parsed["city"] in ("Rome", "Oslo")


async def test_a_forced_call_by_each_api(http: httpx.AsyncClient) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    function = {"name": "report", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    chat = await ask(http, CHAT, model="tiny", messages=HELLO, tools=tools, tool_choice="required", max_tokens=200)
    [choice] = chat["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "report")
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    named = {"type": "function", "name": "report"}
    reply = await ask(http, RESPONSES, model="tiny", input="hi", tools=[{**named, **function}], tool_choice=named)
    assert [item["type"] for item in reply["output"]] == ["function_call"]
    tool = {"name": "report", "input_schema": SCHEMA}
    events = await stream(
        http, MESSAGES, model="tiny", messages=HELLO, max_tokens=200, tools=[tool], tool_choice={"type": "any"}
    )
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_schema_that_cannot_be_kept_is_refused(http: httpx.AsyncClient) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}
    answer = await http.post(CHAT, json={"model": "tiny", "messages": HELLO, "response_format": form})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


async def test_an_echoed_prompt_has_the_log_probabilities_of_scoring(http: httpx.AsyncClient) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": "hello", "echo": True, "logprobs": 2}
    scored = (await ask(http, COMPLETIONS, **fields, max_tokens=0))["choices"][0]
    assert scored["text"] == "hello"
    logprobs = scored["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (
        list("hello"), None, None,
    )  # fmt: skip
    longer = (await ask(http, COMPLETIONS, **fields, max_tokens=4))["choices"][0]
    assert longer["text"].startswith("hello")
    assert len(longer["logprobs"]["tokens"]) == 9
    assert longer["logprobs"]["token_logprobs"][:5] == logprobs["token_logprobs"]
    assert longer["logprobs"]["text_offset"][:5] == [0, 1, 2, 3, 4]


async def test_a_token_and_its_alternatives_agree(http: httpx.AsyncClient) -> None:
    answer = await ask(http, CHAT, messages=HELLO, logprobs=True, top_logprobs=3, max_tokens=30)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [block["token"] for block in content] == list("Rome is sunny.")
    assert all(block["top_logprobs"][0] == {k: block[k] for k in ("token", "logprob", "bytes")} for block in content)
