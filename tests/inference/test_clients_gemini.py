"""Gemini's generateContent, v1beta: what is sent, and what is understood of what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.config.prices import TokenUsage
from evsys_sdk.data.chat import image_base64_block, image_url_block, text_block
from evsys_sdk.errors import DataError, EvsysAuthError
from evsys_sdk.inference.errors import InferenceError
from evsys_sdk.registry import get_inference

from .conftest import SECRET
from .stand_in import Reply, gemini_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Provider

ASK: dict[str, Any] = {"max_tokens": 16, "temperature": 0.5}
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA}}


@pytest.fixture
def gemini(make_provider: Callable[[str], Provider]) -> Provider:
    return make_provider("gemini")


async def answer(gemini: Provider, body: dict[str, Any], **ask: Any) -> Any:
    gemini.server.script = [Reply(200, body)]
    [completion] = await gemini.make().complete(HELLO, **(ASK | ask))
    return completion


async def test_a_conversation_and_its_settings_are_sent_as_documented(gemini: Provider) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ]
    client = gemini.make(extra={"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}})
    [completion] = await client.complete(messages, **ASK, stop=["END"], tools=[WEATHER], seed=3)
    assert gemini.server.last.path == "/models/gemini-2.5-flash:generateContent"
    assert gemini.server.last.headers["x-goog-api-key"] == SECRET
    assert gemini.server.last.body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "2+2?"}]},
            {"role": "model", "parts": [{"text": "4"}]},
            {"role": "user", "parts": [{"text": "Sure?"}]},
        ],
        "generationConfig": {
            "maxOutputTokens": 16,
            "temperature": 0.5,
            "stopSequences": ["END"],
            "seed": 3,
            "thinkingConfig": {"thinkingBudget": 0},
        },
        "tools": [
            {"functionDeclarations": [{"name": "weather", "description": "Of a city", "parametersJsonSchema": SCHEMA}]}
        ],
    }
    assert completion.text == "You said: Sure?"
    assert (completion.stop_reason, completion.finish, completion.model) == ("stop", "STOP", "gemini-2.5-flash")


async def test_a_model_may_be_named_with_its_path(gemini: Provider) -> None:
    await gemini.make(model="models/gemini-2.5-pro").complete(HELLO, **ASK)
    assert gemini.server.last.path == "/models/gemini-2.5-pro:generateContent"


async def test_images_of_both_shapes_become_parts(gemini: Provider) -> None:
    content = [
        text_block("?"),
        image_url_block("https://example.org/a.png?x=1"),
        image_base64_block("image/png", "aGk="),
    ]
    content.append(image_url_block("https://example.org/image"))
    await gemini.make().complete([{"role": "user", "content": content}], **ASK)
    assert gemini.server.last.body["contents"][0]["parts"] == [
        {"text": "?"},
        {"fileData": {"fileUri": "https://example.org/a.png?x=1", "mimeType": "image/png"}},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"fileData": {"fileUri": "https://example.org/image"}},
    ]


async def test_signed_function_calls_come_back_and_go_out_as_they_came(gemini: Provider) -> None:
    parts = [
        {"text": "I should look.", "thought": True},
        {"functionCall": {"id": "f1", "name": "weather", "args": {"city": "Paris"}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "weather", "args": {"city": "Köln"}}},
    ]
    first = await answer(gemini, gemini_body(parts))
    assert first.stop_reason == "tool_calls"
    assert (first.text, first.message["reasoning_content"]) == ("", "I should look.")
    calls = first.message["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"city": "Paris"}', '{"city": "Köln"}']
    messages = [
        *HELLO,
        first.message,
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"},
        {"role": "tool", "tool_call_id": calls[1]["id"], "content": "rain"},
    ]
    second = await gemini.make().complete(messages, **ASK)
    assert second[0].stop_reason == "stop"
    assert gemini.server.last.body["contents"][1:] == [
        {"role": "model", "parts": parts[1:]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "f1", "name": "weather", "response": {"output": "sunny"}}},
                {"functionResponse": {"name": "weather", "response": {"output": "rain"}}},
            ],
        },
    ]


async def test_calls_without_an_id_get_one_that_is_theirs_alone(gemini: Provider) -> None:
    wanted = gemini_body([{"functionCall": {"name": "weather", "args": {}}}])
    gemini.server.script = [Reply(200, wanted), Reply(200, wanted)]
    client, messages = gemini.make(), list[Any](HELLO)
    for _ in range(2):
        [completion] = await client.complete(messages, **ASK)
        messages += [completion.message, {"role": "tool", "content": "ok"}]
    ids = [message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message]
    assert len(set(ids)) == 2
    await client.complete(messages, **ASK)
    assert "id" not in gemini.server.last.body["contents"][1]["parts"][0]["functionCall"]


async def test_the_signature_of_a_text_goes_back_with_it(gemini: Provider) -> None:
    first = await answer(gemini, gemini_body([{"text": "4", "thoughtSignature": "c2ln"}]))
    await gemini.make().complete([*HELLO, first.message, *HELLO], **ASK)
    assert gemini.server.last.body["contents"][1]["parts"] == [{"text": "4", "thoughtSignature": "c2ln"}]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "other"),
        ("SOMETHING_NEW", "other"),
    ],
)
@pytest.mark.parametrize("parts", [[{"text": "a"}], [], None])
async def test_finish_reasons_with_and_without_content(
    gemini: Provider, finish: str, expected: str, parts: Any
) -> None:
    completion = await answer(gemini, gemini_body(parts, finish))
    assert (completion.stop_reason, completion.finish) == (expected, finish)
    assert completion.text == ("a" if parts else "")


async def test_a_blocked_prompt_is_an_empty_answer_whose_tokens_are_known(gemini: Provider) -> None:
    body = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 4}}
    completion = await answer(gemini, body)
    assert (completion.text, completion.stop_reason, completion.finish) == ("", "content_filter", "SAFETY")
    assert completion.usage == TokenUsage(4, 0)
    assert len(gemini.server.seen) == 1


async def test_thinking_counts_as_output_and_caches_as_input(gemini: Provider) -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 20,
    }
    completion = await answer(gemini, gemini_body([{"text": "a"}], usageMetadata=usage))
    assert completion.usage == TokenUsage(105, 27, cached_tokens=40)


async def test_a_candidate_with_nothing_in_it_is_not_an_answer(gemini: Provider) -> None:
    gemini.server.answer = lambda _: Reply(200, gemini_body(None, None))
    with pytest.raises(InferenceError) as caught:
        await gemini.make().complete(HELLO, **ASK)
    assert caught.value.kind == "bad_response"
    assert len(gemini.server.seen) == 3


def refusal(code: int, status: str, *details: dict[str, Any], in_list: bool = False) -> Reply:
    body = {"error": {"code": code, "message": "no", "status": status, "details": list(details)}}
    return Reply(code, [body] if in_list else body)


@pytest.mark.parametrize("in_list", [True, False])
async def test_the_delay_in_the_body_is_honoured(gemini: Provider, in_list: bool) -> None:
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}
    gemini.server.answer = lambda _: refusal(429, "RESOURCE_EXHAUSTED", wait, in_list=in_list)
    with pytest.raises(InferenceError, match="deadline of 30 s") as caught:
        await gemini.make(deadline_s=30).complete(HELLO, **ASK)
    assert caught.value.retry_after == 37.5
    assert caught.value.kind == "rate_limited"


async def test_a_daily_allowance_that_is_used_up_is_not_waited_for(gemini: Provider) -> None:
    spent = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    gemini.server.answer = lambda _: refusal(429, "RESOURCE_EXHAUSTED", spent, {"retryDelay": "1s"})
    with pytest.raises(InferenceError) as caught:
        await gemini.make().complete(HELLO, **ASK)
    assert caught.value.kind == "quota"
    assert len(gemini.server.seen) == 1


async def test_an_invalid_key_is_about_the_key_although_the_status_is_400(gemini: Provider) -> None:
    gemini.server.answer = lambda _: refusal(400, "INVALID_ARGUMENT", {"reason": "API_KEY_INVALID"})
    with pytest.raises(EvsysAuthError, match="STAND_IN_KEY"):
        await gemini.make().complete(HELLO, **ASK)


async def test_a_conversation_without_a_user_is_refused_before_it_is_sent(gemini: Provider) -> None:
    with pytest.raises(DataError, match="no user message"):
        await gemini.make().complete([{"role": "system", "content": "Be brief."}], **ASK)
    assert gemini.server.seen == []


def test_the_version_of_the_api_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    client = get_inference("gemini")(model="gemini-2.5-flash", api_version="v1")
    assert client._url().endswith(".com/v1/models/gemini-2.5-flash:generateContent")
    client.close()
