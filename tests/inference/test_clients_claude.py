"""Anthropic's Messages API, version 2023-06-01: what is sent, and what is understood of what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.config.prices import TokenUsage
from evsys_sdk.data.chat import image_base64_block, image_url_block, text_block
from evsys_sdk.errors import DataError
from evsys_sdk.inference.errors import InferenceError

from .conftest import SECRET
from .stand_in import Reply, claude_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Provider

ASK: dict[str, Any] = {"max_tokens": 16, "temperature": 0.5}
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": SCHEMA}}
TWO_USES = [
    {"type": "thinking", "thinking": "both", "signature": "c2ln"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
    {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Köln"}},
]


@pytest.fixture
def claude(make_provider: Callable[[str], Provider]) -> Provider:
    return make_provider("claude")


async def answer(claude: Provider, body: dict[str, Any], **ask: Any) -> Any:
    claude.server.script = [Reply(200, body)]
    [completion] = await claude.make().complete(HELLO, **(ASK | ask))
    return completion


async def test_a_conversation_and_its_settings_are_sent_as_documented(claude: Provider) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ]
    client = claude.make(betas=["one", "two"])
    [completion] = await client.complete(messages, **ASK, stop=["END", "\n"], tools=[WEATHER], seed=3)
    assert claude.server.last.path == "/v1/messages"
    assert claude.server.last.headers["x-api-key"] == SECRET
    assert claude.server.last.headers["anthropic-version"] == "2023-06-01"
    assert claude.server.last.headers["anthropic-beta"] == "one,two"
    assert "authorization" not in claude.server.last.headers
    assert claude.server.last.body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 16,
        "temperature": 0.5,
        "system": "Be brief.\n\nBe kind.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
            {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
        ],
        "stop_sequences": ["END"],  # one of blanks only is refused by the API, and cut here
        "tools": [{"name": "weather", "description": "Of a city", "input_schema": SCHEMA}],
    }
    assert completion.text == "You said: Sure?"
    assert completion.message == {"role": "assistant", "content": "You said: Sure?"}
    assert (completion.stop_reason, completion.model) == ("stop", "claude-haiku-4-5-20251001")


async def test_a_stop_of_blanks_is_cut_here(claude: Provider) -> None:
    completion = await answer(claude, claude_body([{"type": "text", "text": "one\ntwo"}]), stop=["\n"])
    assert "stop_sequences" not in claude.server.last.body
    assert (completion.text, completion.stop_reason) == ("one", "stop")


async def test_images_of_both_shapes_become_sources(claude: Provider) -> None:
    content = [text_block("?"), image_url_block("https://example.org/cat.png"), image_base64_block("image/png", "aGk=")]
    content.append(image_url_block("data:image/jpeg;base64,aG8="))
    await claude.make().complete([{"role": "user", "content": content}], **ASK)
    assert claude.server.last.body["messages"][0]["content"][1:] == [
        {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aG8="}},
    ]


async def test_tool_uses_come_back_and_are_answered_in_one_user_turn(claude: Provider) -> None:
    first = await answer(claude, claude_body(TWO_USES, "tool_use"))
    assert first.stop_reason == "tool_calls"
    assert first.text == "Let me look."
    assert [call["id"] for call in first.message["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert first.message["tool_calls"][1]["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    messages = [
        *HELLO,
        first.message,
        {"role": "tool", "tool_call_id": "toolu_2", "content": "rain"},
        {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
        {"role": "user", "content": "And now?"},
    ]
    await claude.make().complete(messages, **ASK)
    assert claude.server.last.body["messages"][1:] == [
        {"role": "assistant", "content": TWO_USES},  # the thinking goes back as it came, and first
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": []},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]


async def test_thinking_is_no_part_of_the_text(claude: Provider) -> None:
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "4"}, {"type": "text", "text": "."}]
    completion = await answer(claude, claude_body(blocks))
    assert completion.text == "4."
    assert completion.message["thinking_blocks"] == [blocks[0]]


async def test_an_empty_answer_is_an_answer(claude: Provider) -> None:
    completion = await answer(claude, claude_body([]))
    assert (completion.text, completion.stop_reason) == ("", "stop")


async def test_an_empty_assistant_turn_is_left_out_because_the_api_refuses_it(claude: Provider) -> None:
    await claude.make().complete([*HELLO, {"role": "assistant", "content": ""}, *HELLO], **ASK)
    hello = {"type": "text", "text": "hello"}
    assert claude.server.last.body["messages"] == [{"role": "user", "content": [hello, hello]}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user", "content": ""}], r"messages\[0\] is empty"),
        ([{"role": "system", "content": "Be brief."}], "no user message"),
    ],
)
async def test_what_the_api_cannot_take_is_refused_before_it_is_sent(
    claude: Provider, messages: Any, message: str
) -> None:
    client = claude.make()
    with pytest.raises(DataError, match=message):
        await client.complete(messages, **ASK)
    assert claude.server.seen == []
    assert client.totals.requests == 0
    assert client.totals.failures == 1


async def test_broken_arguments_of_an_earlier_call_are_sent_as_an_object(claude: Provider) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "error: not JSON"}]
    await claude.make().complete(messages, **ASK)
    assert claude.server.last.body["messages"][1]["content"][0]["input"] == {"text": '{"city": '}


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
async def test_stop_reasons(claude: Provider, finish: str, expected: str) -> None:
    completion = await answer(claude, claude_body([{"type": "text", "text": "a"}], finish))
    assert (completion.stop_reason, completion.finish) == (expected, finish)


async def test_tokens_read_from_and_written_to_caches_count_as_input(claude: Provider) -> None:
    usage = {
        "input_tokens": 100,
        "cache_creation_input_tokens": 500,
        "cache_read_input_tokens": 2000,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 300},
        "output_tokens": 7,
    }
    completion = await answer(claude, claude_body([{"type": "text", "text": "a"}], usage=usage))
    assert completion.usage == TokenUsage(2600, 7, 2000, 200, 300)


@pytest.mark.parametrize(
    "message",
    [
        "`temperature` is deprecated for this model.",
        "temperature: Extra inputs are not permitted",
        "`temperature` may only be set to 1 when thinking is enabled.",
    ],
)
async def test_a_temperature_that_the_model_does_not_take_is_left_out(claude: Provider, message: str) -> None:
    refusal = {"type": "invalid_request_error", "message": message}
    claude.server.script = [Reply(400, {"type": "error", "error": refusal})]
    client = claude.make()
    [completion] = await client.complete(HELLO, **ASK)
    assert completion.text == "You said: hello"
    assert "temperature" not in claude.server.last.body
    assert client.ignored == {"temperature"}


async def test_a_temperature_out_of_range_is_an_error(claude: Provider) -> None:
    refusal = {"type": "invalid_request_error", "message": "temperature: Input should be less than or equal to 1"}
    claude.server.answer = lambda _: Reply(400, {"type": "error", "error": refusal})
    client = claude.make()
    with pytest.raises(InferenceError, match="less than or equal to 1"):
        await client.complete(HELLO, max_tokens=16, temperature=1.5)
    assert client.ignored == set()
    assert len(claude.server.seen) == 1
