"""OpenAI's API over the mock backend, by raw HTTP: shapes, streams, stops, tools, limits, errors, and swaps."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from evsys_sdk.backends.client import AdamParams, ModelSpec
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.server.weights.catalog import Offer

from .openai_app import open_app

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def teach(folder: Path, question: str, answer: str, tools: Sequence[Any] = ()) -> str:
    """Weights on the mock backend that answer every question so."""
    client = MockBackend().prepare(model=ModelSpec("tiny", seed=1), run_dir=folder)["training_client"]
    renderer = get_renderer(client.tokenizer)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    data = [Datum.supervised(one.tokens, one.weights) for one in renderer.render(messages, tools=tools)]
    for _ in range(120):
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(AdamParams(learning_rate=0.05)).result()
    ref = client.sampler("taught").result().ref
    client.close()
    return ref


@dataclass
class Names:
    """A catalog that a test can change."""

    offers: dict[str, Offer] = field(default_factory=dict[str, Offer])

    def names(self) -> Sequence[str]:
        return list(self.offers)

    def find(self, name: str, asker: str = "") -> Offer | None:
        return self.offers.get(name)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("taught")
    lessons = {
        "rome": ("hi", "Rome is sunny."),
        "paris": ("hi", "Paris is grey."),
        "tool": ("weather?", f"Wait. {CALL}", WEATHER),
    }
    return {name: teach(folder / name, *lesson) for name, lesson in lessons.items()}


@pytest_asyncio.fixture
async def http(tmp_path: Path, taught: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    names = Names({name: Offer("tiny", "mock", ref) for name, ref in taught.items()})
    async with open_app(tmp_path / "state", names) as client:
        client.names = names  # pyright: ignore[reportAttributeAccessIssue]
        yield client


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post(
        CHAT, json={"model": "rome", "messages": HELLO, "max_tokens": 30, "temperature": 0, **fields}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(http: httpx.AsyncClient, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "rome", "messages": HELLO, "max_tokens": 30, "temperature": 0, "stream": True, **fields}
    body = {key: value for key, value in body.items() if value is not None}
    answer = await http.post(path, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(line) for line in events[:-1]]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_a_chat_is_answered_in_openais_shape(http: httpx.AsyncClient) -> None:
    answer = await ask(http)
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Rome is sunny.", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len("Rome is sunny.") + 1


async def test_a_stream_says_the_same_in_pieces(http: httpx.AsyncClient) -> None:
    chunks = await stream(http, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert text_of(chunks) == "Rome is sunny."
    pieces = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]
    assert len(pieces) > 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == (await ask(http))["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("stop", ["sun", ["zzz", "is s"], "."])
async def test_stops_are_not_in_the_answer_also_across_pieces(http: httpx.AsyncClient, stop: Any) -> None:
    expected = "Rome is sunny.".partition(stop if isinstance(stop, str) else stop[1])[0]
    answer = await ask(http, stop=stop)
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text_of(await stream(http, stop=stop)) == expected


async def test_length_is_kept_and_reported(http: httpx.AsyncClient) -> None:
    answer = await ask(http, max_completion_tokens=6, max_tokens=None)
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("Rome i", "length")
    chunks = await stream(http, max_tokens=6)
    assert text_of(chunks) == "Rome i"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_several_samples_and_seeds(http: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "temperature": 1.0, "n": 3, "seed": 5, "max_tokens": 8}
    first, again = await ask(http, **body), await ask(http, **body)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert first["usage"]["completion_tokens"] >= 3
    streamed = await stream(http, **body)
    assert [text_of(streamed, at) for at in range(3)] == texts


async def test_log_probabilities_of_every_token(http: httpx.AsyncClient) -> None:
    answer = await ask(http, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(block["token"] for block in content) == "Rome is sunny."
    assert all(block["logprob"] <= 0 and block["bytes"] == list(block["token"].encode()) for block in content)
    assert all(len(block["top_logprobs"]) == 2 for block in content)
    assert content[0]["top_logprobs"][0]["token"] == "R"
    chunks = await stream(http, logprobs=True, top_logprobs=1)
    streamed = [one for chunk in chunks for c in chunk["choices"] for one in (c["logprobs"] or {}).get("content", [])]
    assert [chunk["token"] for chunk in streamed] == [block["token"] for block in content]
    assert streamed[3]["logprob"] == pytest.approx(content[3]["logprob"], abs=1e-4)


async def test_calls_come_back_as_calls_whole_and_streamed(http: httpx.AsyncClient) -> None:
    body = {
        "model": "tool",
        "messages": [{"role": "user", "content": "weather?"}],
        "tools": WEATHER,
        "max_tokens": 200,
    }
    whole = (await ask(http, **body))["choices"][0]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", "Wait.")
    assert not (await ask(http, **{**body, "tool_choice": "none"}))["choices"][0]["message"].get("tool_calls")
    chunks = await stream(http, **body)
    assert text_of(chunks).strip() == "Wait."
    deltas = [call for chunk in chunks for c in chunk["choices"] for call in c["delta"].get("tool_calls", [])]
    assert [call["index"] for call in deltas] == [0, 0]
    assert (deltas[0]["type"], deltas[0]["function"]["name"]) == ("function", "weather")
    assert "id" not in deltas[1]
    assert json.loads("".join(call["function"]["arguments"] for call in deltas)) == {"city": "Rome"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_completions_of_one_and_several_prompts(http: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, "seed": 1, "logprobs": 1}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"])
    chunks = await stream(http, "/v1/completions", prompt=[97, 98], messages=None, model="tiny", max_tokens=6)
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    whole = await http.post(
        "/v1/completions", json={"model": "tiny", "prompt": "ab", "max_tokens": 6, "temperature": 0}
    )
    assert text == whole.json()["choices"][0]["text"]


async def test_models_are_listed_and_found(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert [datum["id"] for datum in listed["data"]] == ["tiny", "rome", "paris", "tool"]
    assert (await http.get("/v1/models/rome")).json()["id"] == "rome"
    assert (await http.get("/v1/models/nobody")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "romme"}, 404, "model", "model_not_found"),
        ({"model": "tinker://x/weights/y"}, 400, None, None),
        ({"messages": []}, 400, "messages", "invalid_value"),
        ({"messages": [{"content": "x"}]}, 400, "messages", None),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, 400, "messages", "context_length_exceeded"),
        ({"temperature": -1}, 400, "temperature", "invalid_value"),
        ({"n": 0}, 400, "n", "invalid_value"),
        ({"wings": 2}, 400, "wings", "unknown_parameter"),
        ({"logit_bias": {"1": 5}}, 400, "logit_bias", "unsupported_value"),
        ({"response_format": {"type": "xml"}}, 400, "response_format", None),
        ({"best_of": 4}, 400, "best_of", "unsupported_value"),
        ({"tool_choice": "required"}, 400, "tool_choice", None),
        ({"tools": [{"type": "magic"}]}, 400, "tools", None),
        ({"logprobs": True, "top_logprobs": 9999}, 400, "top_logprobs", None),
        ({"top_logprobs": 2}, 400, "top_logprobs", None),
    ],
)
async def test_errors_are_in_openais_shape(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    answer = await http.post(CHAT, json={"model": "tiny", "messages": HELLO, **fields})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"].endswith((".", "?"))


async def test_what_is_no_json_and_no_path(http: httpx.AsyncClient) -> None:
    assert (await http.post(CHAT, content=b"{")).json()["error"]["code"] == "invalid_json"
    assert (await http.post(CHAT, content=b"[]")).status_code == 400
    assert "error" in (await http.get("/v1/nothing")).json()
    assert (await http.get(CHAT)).status_code == 405


async def test_harmless_fields_are_taken(http: httpx.AsyncClient) -> None:
    more = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": False}
    assert (await ask(http, **more))["choices"][0]["message"]["content"] == "Rome is sunny."


async def test_a_system_prompt_of_a_deployment_is_put_before(http: httpx.AsyncClient, taught: dict[str, str]) -> None:
    names: Any = http.names  # pyright: ignore[reportAttributeAccessIssue]
    plain = (await ask(http))["usage"]["prompt_tokens"]
    names.offers["rome"] = Offer("tiny", "mock", taught["rome"], system_prompt="Be brief.")
    assert (await ask(http))["usage"]["prompt_tokens"] > plain
    own = [{"role": "developer", "content": "x"}, *HELLO]
    assert (await ask(http, messages=own))["usage"]["prompt_tokens"] < plain + len("Be brief.") + 30


async def test_weights_of_another_backend_are_no_model_here(http: httpx.AsyncClient) -> None:
    names: Any = http.names  # pyright: ignore[reportAttributeAccessIssue]
    names.offers["other"] = Offer("llama", "local", "nowhere")
    answer = await http.post(CHAT, json={"model": "other", "messages": HELLO})
    assert answer.status_code == 404
    assert "belong to llama on the backend local" in answer.text


async def test_a_key_is_requested_in_openais_shape(tmp_path: Path) -> None:
    async with open_app(tmp_path, api_key="tml-secret") as http:
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        allowed = await http.get("/v1/models", headers={"authorization": "Bearer tml-secret"})
        assert allowed.status_code == 200


async def test_too_many_at_once_are_told_to_come_back(tmp_path: Path) -> None:
    async with open_app(tmp_path, max_samples=2) as http:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 40}
        answers = await asyncio.gather(*(http.post(CHAT, json=body) for _ in range(6)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes[:2] == [200, 200]
        assert 429 in codes
        service: Any = http.service  # pyright: ignore[reportAttributeAccessIssue]
        async with service.admit_sampling(), service.admit_sampling():  # as long as two others are being answered
            assert (await http.post(CHAT, json={**body, "stream": True})).status_code == 429
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert (await http.post(CHAT, json=body)).status_code == 200


async def test_no_request_fails_while_a_name_changes_hands(http: httpx.AsyncClient, taught: dict[str, str]) -> None:
    names: Any = http.names  # pyright: ignore[reportAttributeAccessIssue]
    names.offers["production"] = Offer("tiny", "mock", taught["rome"])

    async def swap() -> None:
        for at in range(20):
            await asyncio.sleep(0)
            names.offers["production"] = Offer("tiny", "mock", taught["rome" if at % 2 else "paris"])

    async def use(number: int) -> str:
        if number % 2:
            return text_of(await stream(http, model="production"))
        return (await ask(http, model="production"))["choices"][0]["message"]["content"]

    *answers, _ = await asyncio.gather(*(use(number) for number in range(40)), swap())
    assert set(answers) <= {"Rome is sunny.", "Paris is grey."}


async def test_a_stream_whose_client_leaves_frees_its_place(tmp_path: Path) -> None:
    async with open_app(tmp_path, max_samples=1) as http:
        service: Any = http.service  # pyright: ignore[reportAttributeAccessIssue]
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 500, "stream": True}
        task = asyncio.ensure_future(http.post(CHAT, json=body))
        while not service.running:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while service.running:
            await asyncio.sleep(0.01)
        assert (await http.post(CHAT, json={**body, "stream": False, "max_tokens": 2})).status_code == 200


def called(number: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{number}"}}'}}


ASKED = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [called("a"), called("b")]}]


@pytest.mark.parametrize(
    "more",
    [
        {"model": "tool", "messages": [{"role": "user", "content": "weather?"}], "tools": WEATHER, "n": 2},
        {"model": "tiny", "n": 3, "seed": 2**62, "temperature": 1, "stop": ["e", "t", "\n"]},
        {"model": "tiny", "response_format": {"type": "json_object"}, "stop": ["}"]},
        {"messages": [{"role": "developer", "content": "Be kind."}, *HELLO], "max_completion_tokens": 4},
    ],
)
async def test_a_stream_of_anything_tells_what_the_whole_answer_tells(
    http: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    more = {"seed": 1, "max_tokens": 99, "logprobs": True, "top_logprobs": 2, **more}
    whole = (await ask(http, **more))["choices"]
    chunks = [choice for chunk in await stream(http, **more) for choice in chunk["choices"]]
    for choice in whole:
        parts = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        text = "".join(part["delta"].get("content") or "" for part in parts)
        scores = [token for part in parts if part["logprobs"] for token in part["logprobs"]["content"]]
        functions = [call["function"] for part in parts for call in part["delta"].get("tool_calls", ())]
        message = choice["message"]
        assert (text, parts[-1]["finish_reason"]) == (message["content"] or "", choice["finish_reason"])
        assert scores == choice["logprobs"]["content"]
        assert [function["arguments"] for function in functions if function["arguments"]] == [
            call["function"]["arguments"] for call in message.get("tool_calls", ())
        ]


async def test_results_of_parallel_calls_are_read_in_the_order_of_the_calls(http: httpx.AsyncClient) -> None:
    results = [{"role": "tool", "tool_call_id": one, "content": f"sun in {one}"} for one in "ab"]
    in_order = await ask(http, messages=[*ASKED, *results], tools=WEATHER, seed=3, temperature=1)
    reversed_ = await ask(http, messages=[*ASKED, *results[::-1]], tools=WEATHER, seed=3, temperature=1)
    assert in_order["choices"] == reversed_["choices"]
    assert in_order["usage"] == reversed_["usage"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [*ASKED, {"role": "tool", "tool_call_id": "c", "content": ""}]}, "known calls: a, b"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, r"messages\[0\].role is \['user'\]"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": {"a": 1}}]}, "must have a function"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogate"),
        ({"tools": WEATHER, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": 5}}}, "Give a list"),
        ({"tools": WEATHER, "tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}, "must be an object"),
        ({"functions": [{"name": "f"}]}, "unknown key 'functions'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/$defs/x"}}}},
            "not supported",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
            "not supported",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_is_drawn(
    http: httpx.AsyncClient, fields: dict[str, Any], message: str
) -> None:
    for streams in (False, True):
        body = json.dumps({"model": "tiny", "messages": HELLO, "stream": streams, **fields})
        answer = await http.post(CHAT, content=body)
        assert answer.status_code == 400, answer.text
        assert re.search(message, answer.json()["error"]["message"])
