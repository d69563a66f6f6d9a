"""The four APIs: requests become one `Query`, a `Reply` becomes each API's answer and its stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsys_sdk.inference.messages import FunctionCall
from evsys_sdk.inference.protocols import CHAT_EXCHANGES, describe_error
from evsys_sdk.inference.protocols.completions import TextCompletion
from evsys_sdk.inference.protocols.exchange import (
    ChatQuery,
    Exchange,
    Reply,
    RequestRefused,
    TokenScore,
    chat_reply,
    read_object,
)

CHAT, MESSAGES, RESPONSES = CHAT_EXCHANGES
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL = FunctionCall("call_1", "weather", '{"city": "Rome"}', {})
FUNCTION = {"name": "weather", "description": "d", "parameters": SCHEMA}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": "Wait.", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": CONVERSATION,
        "max_tokens": 9,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    },
    MESSAGES: {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Wait."},
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}]},
        ],
        "max_tokens": 9,
        "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "weather"},
    },
    RESPONSES: {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        ],
        "max_output_tokens": 9,
        "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "weather"},
    },
}


def read(path: str, **fields: Any) -> Exchange[ChatQuery]:
    return CHAT_EXCHANGES[path].read({"model": "m", **fields})


def data(events: list[bytes]) -> list[Any]:
    texts = [event.partition(b"data: ")[2].strip() for event in events]
    return [json.loads(text) for text in texts if text != b"[DONE]"]


def test_the_same_conversation_with_tools_is_the_same_query() -> None:
    first, *others = [read(path, **fields).query for path, fields in ASKED.items()]
    assert first.messages == CONVERSATION
    assert first.tools == [{"type": "function", "function": FUNCTION}]
    assert (first.forced, first.max_tokens) == (("weather",), 9)
    assert others == [first, first]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
    ],
)
def test_each_api_has_its_own_way_to_ask_for_a_schema(path: str, fields: dict[str, Any]) -> None:
    assert read(path, **{**ASKED[path], **fields}).query.output_schema == SCHEMA


def test_an_answer_with_text_and_a_call_in_each_shape() -> None:
    reply = Reply("Wait.", "tool_calls", 7, [CALL])
    chat, message, response = (read(path, **fields).answer([reply], 5) for path, fields in ASKED.items())
    [choice] = chat["choices"]
    assert (choice["message"]["content"], choice["message"]["tool_calls"]) == ("Wait.", [CALLED])
    assert (choice["finish_reason"], chat["usage"]["total_tokens"]) == ("tool_calls", 12)
    assert message["content"] == [
        {"type": "text", "text": "Wait."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
    ]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("tool_use", 7)
    said, called = response["output"]
    assert said["content"][0]["text"] == "Wait."
    assert (called["type"], called["call_id"], called["arguments"]) == ("function_call", "call_1", CALL.arguments)
    assert (response["status"], response["usage"]["total_tokens"]) == ("completed", 12)
    assert [tool["type"] for tool in response["tools"]] == ["function"], "a search that nobody runs is not offered"


def test_a_stream_tells_what_the_whole_answer_tells() -> None:
    reply = Reply("Wait.", "tool_calls", 7, [CALL])
    exchange = read(RESPONSES, **ASKED[RESPONSES])
    events = data(exchange.replay([reply], 5))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == "response.completed"
    assert [item["type"] for item in last["response"]["output"]] == ["message", "function_call"]
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert deltas == ["Wait.", CALL.arguments]

    kinds = [datum["type"] for datum in data(read(MESSAGES, **ASKED[MESSAGES]).replay([reply], 5))]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", "ping", *block, *block, "message_delta", "message_stop"]

    chunks = data(read(CHAT, **ASKED[CHAT]).replay([reply], 5))
    parts = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks]
    arguments = "".join(part[0]["function"]["arguments"] for part in parts if part)
    assert arguments == CALL.arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


THOUGHT = {"role": "assistant", "content": "Rome.", "reasoning_content": "hm"}


@pytest.mark.parametrize("path", CHAT_EXCHANGES)
def test_thinking_comes_back_as_it_was_sent(path: str) -> None:
    reply = chat_reply("<think>\nhm\n</think>\n\nRome.", "stop", 7)
    assert (reply.thinking, reply.text) == ("hm", "Rome.")
    user = CONVERSATION[1]
    fields: dict[str, Any] = {}
    if path == MESSAGES:
        content = read(path, messages=[user]).answer([reply], 5)["content"]
        assert [block["type"] for block in content] == ["thinking", "text"]
        fields = {"messages": [user, {"role": "assistant", "content": content}, user]}
    if path == RESPONSES:
        output = read(path, input=[user]).answer([reply], 5)["output"]
        assert [item["type"] for item in output] == ["reasoning", "message"]
        fields = {"input": [user, *output, user]}
    if path == CHAT:
        message = read(path, messages=[user]).answer([reply], 5)["choices"][0]["message"]
        assert {key: message[key] for key in THOUGHT} == THOUGHT
        renamed = {"role": "assistant", "content": "Rome.", "reasoning": "hm"}  # as vLLM calls it
        fields = {"messages": [user, renamed, user]}
    assert read(path, **fields).query.messages == [user, THOUGHT, user]


@pytest.mark.parametrize("calls", [[], [CALL]])
def test_a_stream_that_grows_says_what_the_whole_answer_says(calls: list[FunctionCall]) -> None:
    whole = "<think>\nWhich\ncity?\n</think>\n\nRome, of <course>."
    reply = chat_reply(whole, "tool_calls" if calls else "stop", 7, calls)
    for path, fields in ASKED.items():
        exchange = read(path, **fields)
        events = exchange.start(5)
        for size in range(len(whole)):
            events += exchange.grow(0, whole[:size])
        events = data([*events, *exchange.close(0, reply), *exchange.finish(5, 7)])
        if path == CHAT:
            deltas = [event["choices"][0]["delta"] for event in events]
            thinking = "".join(delta.get("reasoning_content", "") for delta in deltas)
            text = "".join(delta.get("content", "") for delta in deltas)
            assert sum("content" in delta for delta in deltas) > 10
        elif path == MESSAGES:
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            thinking = "".join(delta.get("thinking", "") for delta in deltas)
            text = "".join(delta.get("text", "") for delta in deltas)
            starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
            assert starts == ["thinking", "text", *("tool_use" for _ in calls)]
            assert [event["index"] for event in events if event["type"] == "content_block_stop"] == list(
                range(len(starts))
            )
        else:
            thinking = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
            text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
            output = [{**item, "id": ""} for item in events[-1]["response"]["output"]]
            assert output == [{**item, "id": ""} for item in read(path, **fields).answer([reply], 5)["output"]]
            done = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
            assert done == list(range(len(output)))
        assert (thinking, text) == (reply.thinking, reply.text)


def test_an_answer_that_is_cut_off_while_it_thinks_has_only_thinking() -> None:
    assert (reply := chat_reply("<think>\nhm", "length", 2)).text == ""
    assert reply.thinking == "hm"
    assert chat_reply("<", "length", 1).text == "<"


def test_a_response_that_was_cut_off_is_incomplete() -> None:
    exchange = read(RESPONSES, input="hi")
    assert exchange.answer([Reply("a", "length", 1)], 1)["incomplete_details"] == {"reason": "max_output_tokens"}
    assert data(exchange.replay([Reply("a", "length", 1)], 1))[-1]["type"] == "response.incomplete"


def test_a_free_text_tool_is_called_with_its_text() -> None:
    exchange = read(RESPONSES, input="hi", tools=[{"type": "custom", "name": "patch"}])
    call = FunctionCall("c", "patch", '{"input": "*** Begin"}', {})
    [item] = exchange.answer([Reply("", "tool_calls", 1, [call])], 1)["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")


def test_log_probabilities_of_an_echoed_prompt() -> None:
    exchange = TextCompletion.read({"model": "m", "prompt": "ab", "max_tokens": 0, "echo": True, "logprobs": 1})
    scores = [TokenScore("a", None), TokenScore("b", -1.5, [("c", -0.5)])]
    [choice] = exchange.answer([Reply("ab", "length", 0, scores=scores)], 2)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.5],
        "top_logprobs": [None, {"c": -0.5}],
        "text_offset": [0, 1],
    }


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": CONVERSATION, "best_of": 3}, "best_of"),
    (CHAT, {"messages": CONVERSATION, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": CONVERSATION, "response_format": {"type": "xml"}}, "response_format"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": "x"}], "mcp_servers": [{}]}, "mcp_servers"),
    (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": None}]}]}, "input"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]}, "input"),
    (RESPONSES, {"input": "x", "tools": [{"name": "f"}]}, "tools"),
    (CHAT, {"messages": CONVERSATION, "stream": "yes"}, "stream"),
    (CHAT, {"messages": CONVERSATION, "max_tokens": "5"}, "max_tokens"),
    (CHAT, {"messages": CONVERSATION, "n": True}, "n"),
    (CHAT, {"messages": CONVERSATION, "seed": 2**64}, "seed"),
    (CHAT, {"messages": CONVERSATION, "stop": ["a", ""]}, "stop"),
    (CHAT, {"messages": CONVERSATION, "stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": CONVERSATION, "stream": True, "stream_options": {"x": 1}}, "stream_options"),
    (CHAT, {"messages": CONVERSATION, "tools": [{"type": "function", "function": FUNCTION}] * 2}, "tools"),
    (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]}, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages"),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read(path, **fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"a": NaN}', b'{"a": -Infinity}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused, match=r"the body is .* Send a JSON object\."):
        read_object(body)


def test_errors_are_in_the_shape_of_their_api() -> None:
    assert describe_error(MESSAGES, 429, "wait")["error"] == {"type": "rate_limit_error", "message": "wait"}
    assert describe_error(RESPONSES, 404, "x", "model", "c")["error"]["param"] == "model"
