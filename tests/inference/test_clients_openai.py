"""OpenAI's chat completions: what is sent, and what is understood of what comes back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.config.prices import TokenUsage
from evsys_sdk.data.chat import image_base64_block, image_url_block, text_block
from evsys_sdk.inference.errors import InferenceError

from .stand_in import Reply, openai_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Provider

ASK: dict[str, Any] = {"max_tokens": 16, "temperature": 0.5}
HELLO = [{"role": "user", "content": "hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def openai(make_provider: Callable[[str], Provider]) -> Provider:
    return make_provider("openai")


async def answer(openai: Provider, body: dict[str, Any], **ask: Any) -> Any:
    openai.server.script = [Reply(200, body)]
    [completion] = await openai.make().complete(HELLO, **(ASK | ask))
    return completion


async def test_a_conversation_and_its_settings_are_sent_as_documented(openai: Provider) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?", "name": "ada"},
        {"role": "assistant", "content": "4", "thinking_blocks": [{"type": "thinking"}], "reasoning_content": "hm"},
        {"role": "user", "content": "Sure?"},
    ]
    client = openai.make()
    [completion] = await client.complete(messages, **ASK, stop=["\n", "END"], tools=[WEATHER], seed=3)
    assert openai.server.last.path == "/chat/completions"
    assert openai.server.last.headers["authorization"].startswith("Bearer sk-Secret")
    assert openai.server.last.body == {
        "model": "gpt-4.1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?", "name": "ada"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "Sure?"},
        ],
        "max_tokens": 16,
        "temperature": 0.5,
        "stop": ["\n", "END"],
        "seed": 3,
        "tools": [WEATHER],
    }
    assert completion.text == "You said: Sure?"
    assert completion.message == {"role": "assistant", "content": "You said: Sure?"}
    assert (completion.stop_reason, completion.finish, completion.model) == ("stop", "stop", "gpt-4.1-2025-04-14")
    assert completion.usage == TokenUsage(1000, 10)


async def test_settings_that_were_not_requested_are_not_sent(openai: Provider) -> None:
    await openai.make().complete(HELLO, **ASK)
    assert set(openai.server.last.body) == {"model", "messages", "max_tokens", "temperature"}


async def test_images_of_both_shapes_become_addresses(openai: Provider) -> None:
    content = [
        text_block("What is this?"),
        image_url_block("https://example.org/cat.png", "low"),
        image_base64_block("image/png", "aGk="),
    ]
    await openai.make().complete([{"role": "user", "content": content}], **ASK)
    assert openai.server.last.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]


async def test_tool_calls_come_back_and_can_be_answered(openai: Provider) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    first = await answer(
        openai, openai_body({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
    )
    assert first.stop_reason == "tool_calls"
    assert first.text == ""
    assert first.message == {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [*HELLO, first.message, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
    await openai.make().complete(messages, **ASK)
    assert openai.server.last.body["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]


async def test_arguments_that_are_objects_are_written_as_text(openai: Provider) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Köln"}}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    await openai.make().complete(messages, **ASK)
    sent = openai.server.last.body["messages"]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("weird", "other"), (None, "other")],
)
async def test_finish_reasons(openai: Provider, finish: Any, expected: str) -> None:
    completion = await answer(openai, openai_body({"role": "assistant", "content": "a"}, finish))
    assert completion.stop_reason == expected
    assert completion.finish == (finish or "")


async def test_a_refusal_is_an_answer_that_was_withheld(openai: Provider) -> None:
    completion = await answer(openai, openai_body({"role": "assistant", "content": None, "refusal": "I can't."}))
    assert completion.text == "I can't."
    assert completion.stop_reason == "content_filter"


async def test_a_prompt_that_is_filtered_is_an_empty_answer_of_unknown_cost(openai: Provider) -> None:
    openai.server.script = [Reply(400, {"error": {"code": "content_filter", "message": "filtered"}})]
    client = openai.make(prices={"gpt-4.1": {"input": 1.0, "output": 1.0}})
    [completion] = await client.complete(HELLO, **ASK)
    assert (completion.text, completion.stop_reason) == ("", "content_filter")
    assert completion.cost_usd is None
    assert len(openai.server.seen) == 1


async def test_thinking_of_compatible_servers_is_kept_apart_from_the_answer(openai: Provider) -> None:
    message = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
    completion = await answer(openai, openai_body(message))
    assert completion.text == "4"
    assert completion.message["reasoning_content"] == "2 and 2"


async def test_a_server_that_does_not_count_leaves_tokens_and_cost_unknown(openai: Provider) -> None:
    body = openai_body({"role": "assistant", "content": "a"})
    del body["usage"]
    openai.server.script = [Reply(200, body)]
    client = openai.make(prices={"gpt-4.1": {"input": 1.0, "output": 1.0}})
    [completion] = await client.complete(HELLO, **ASK)
    assert completion.usage == TokenUsage(None, None)
    assert completion.cost_usd is None
    assert client.totals.cost_usd is None


@pytest.mark.parametrize("said", ["many", -5, 1.5, None, [1]])
async def test_counts_that_are_none_are_unknown(openai: Provider, said: Any) -> None:
    body = openai_body({"role": "assistant", "content": "a"}, usage={"prompt_tokens": said, "completion_tokens": 3})
    assert (await answer(openai, body)).usage == TokenUsage(None, 3)


async def test_thinking_that_is_in_the_total_only_is_paid_for(make_provider: Callable[[str], Provider]) -> None:
    gemini = make_provider("gemini")
    usage = {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}
    gemini.server.answer = lambda _: Reply(200, openai_body({"role": "assistant", "content": "36"}) | {"usage": usage})
    [answer] = await gemini.make().complete(HELLO, **ASK)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 603)


async def test_a_gateway_that_says_200_and_means_429_is_trusted(openai: Provider) -> None:
    openai.server.script = [Reply(200, {"error": {"code": 429, "message": "slow down"}})] * 3
    with pytest.raises(InferenceError) as caught:
        await openai.make().complete(HELLO, **ASK)
    assert (caught.value.kind, caught.value.status) == ("rate_limited", 429)
    assert len(openai.server.seen) == 3


async def test_a_generation_that_was_interrupted_is_tried_again(openai: Provider) -> None:
    broken = openai_body({"role": "assistant", "content": "He"}, "error")
    broken["choices"][0]["error"] = {"code": 502, "message": "upstream"}
    openai.server.script = [Reply(200, broken)]
    [completion] = await openai.make().complete(HELLO, **ASK)
    assert completion.text == "You said: hello"


def refuses(field: str, code: str = "unsupported_value") -> Any:
    """A server whose model does not take a field."""

    def reply(request: Any) -> Reply:
        if field in request.body:
            message = f"Unsupported value: '{field}' does not support this with this model."
            problem = {"message": message, "type": "invalid_request_error", "param": field, "code": code}
            return Reply(400, {"error": problem})
        return Reply(200, openai_body({"role": "assistant", "content": "one END two"}))

    return reply


async def test_a_field_that_the_model_does_not_take_is_left_out_from_then_on(
    openai: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    openai.server.answer = refuses("temperature")
    client = openai.make()
    await asyncio.gather(*(client.complete(HELLO, **ASK) for _ in range(4)))
    assert client.ignored == {"temperature"}
    assert len([record for record in caplog.records if "does not support temperature" in record.message]) == 1
    before = len(openai.server.seen)
    await client.complete(HELLO, **ASK)
    assert len(openai.server.seen) == before + 1
    assert client.totals.failures == 0


async def test_a_stop_that_the_server_does_not_know_is_cut_here(openai: Provider) -> None:
    openai.server.answer = refuses("stop", "unsupported_parameter")
    [completion] = await openai.make().complete(HELLO, **ASK, stop=["END"])
    assert completion.text == "one "
    assert completion.message["content"] == "one "
    assert completion.stop_reason == "stop"


async def test_stops_beyond_the_most_that_may_be_sent_are_cut_here(openai: Provider) -> None:
    openai.server.answer = lambda _: Reply(200, openai_body({"role": "assistant", "content": "one END two"}))
    [completion] = await openai.make().complete(HELLO, **ASK, stop=["a1", "a2", "a3", "a4", "END"])
    assert openai.server.last.body["stop"] == ["a1", "a2", "a3", "a4"]
    assert completion.text == "one "


async def test_the_other_name_of_the_token_limit_is_tried(openai: Provider) -> None:
    openai.server.answer = refuses("max_tokens", "unsupported_parameter")
    await openai.make().complete(HELLO, **ASK)
    assert openai.server.last.body["max_completion_tokens"] == 16


async def test_a_field_that_is_refused_for_its_value_is_an_error(openai: Provider) -> None:
    openai.server.answer = refuses("temperature", "decimal_above_max_value")
    with pytest.raises(InferenceError, match="does not support this") as caught:
        await openai.make().complete(HELLO, **ASK)
    assert caught.value.kind == "bad_request"
    assert len(openai.server.seen) == 1


async def test_extra_fields_are_merged_and_null_leaves_one_out(openai: Provider) -> None:
    client = openai.make(extra={"reasoning_effort": "low", "temperature": None, "metadata": {"a": 1}})
    await client.complete(HELLO, **ASK)
    assert openai.server.last.body["reasoning_effort"] == "low"
    assert openai.server.last.body["metadata"] == {"a": 1}
    assert "temperature" not in openai.server.last.body


@pytest.mark.parametrize("kind", ["claude", "gemini"])
async def test_other_providers_are_asked_by_chat_completions(
    kind: str, make_provider: Callable[[str], Provider]
) -> None:
    provider = make_provider(kind)
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    calls = [{"type": "function", "function": {"name": "weather", "arguments": "{}"}, **signed}] * 2
    provider.server.script = [Reply(200, openai_body({"role": "assistant", "content": None, "tool_calls": calls}))]
    client = provider.make()
    [first] = await client.complete(HELLO, **ASK, stop=["END"], tools=[WEATHER])
    assert provider.server.last.path == "/chat/completions"
    assert provider.server.last.body["max_tokens"] == 16
    assert first.stop_reason == "tool_calls"
    answers = [{"role": "tool", "content": "sunny"}] * 2
    await client.complete([*HELLO, first.message, *answers], **ASK, stop=["\n", "END"])
    sent = provider.server.last.body
    assert len({call["id"] for call in sent["messages"][1]["tool_calls"]}) == 2
    assert all(call["extra_content"] == signed["extra_content"] for call in sent["messages"][1]["tool_calls"])
    assert sent["stop"] == (["END"] if kind == "claude" else ["\n", "END"])


@pytest.mark.parametrize(
    ("details", "kind", "wait"),
    [
        ([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}], "rate_limited", 37.5),
        ([{"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}], "quota", None),
    ],
)
async def test_limits_in_googles_words_are_understood(
    make_provider: Callable[[str], Provider], details: Any, kind: str, wait: float | None
) -> None:
    gemini = make_provider("gemini")
    problem = {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED", "details": details}
    gemini.server.answer = lambda _: Reply(429, [{"error": problem}])
    with pytest.raises(InferenceError) as caught:
        await gemini.make(deadline_s=30, attempts=2).complete(HELLO, **ASK)
    assert (caught.value.kind, caught.value.retry_after) == (kind, wait)
    assert len(gemini.server.seen) == 1


@pytest.mark.parametrize(
    "message",
    ["`temperature` is deprecated for this model.", "`temperature` may only be set to 1 when thinking is enabled."],
)
async def test_a_temperature_that_is_refused_in_words_is_left_out(
    make_provider: Callable[[str], Provider], message: str
) -> None:
    claude = make_provider("claude")
    claude.server.script = [Reply(400, claude.problem(message, "invalid_request_error"))]
    client = claude.make()
    await client.complete(HELLO, **ASK)
    assert "temperature" not in claude.server.last.body
    assert client.ignored == {"temperature"}
