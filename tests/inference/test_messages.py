"""Conversations are checked before they are sent; a problem names the message it is in."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.inference.messages import check_conversation, check_tools

CALLS = [
    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]
ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}], ["a", "b"]),
        ([{"role": "tool", "tool_call_id": name, "content": "1"} for name in ("b", "a")], ["b", "a"]),
    ],
    ids=["without an id, in order", "with ids, in any order"],
)
def test_answers_belong_to_the_open_calls(answers: list[Any], expected: list[str]) -> None:
    assert [message["tool_call_id"] for message in check_conversation([*ASKED, *answers])[2:]] == expected


def test_without_structured_calls_a_tool_speaks_as_the_user() -> None:
    sent = check_conversation([{"role": "assistant", "content": "<tool_call>..."}, {"role": "tool", "content": "4"}])
    assert sent == [{"role": "assistant", "content": "<tool_call>..."}, {"role": "user", "content": "4"}]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation is empty"),
        ([{"content": "x"}], r"messages\[0\].role is None"),
        ([{"role": "bot", "content": "x"}], r"messages\[0\].role is 'bot'"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": [{"type": "audio"}]}], r"messages\[0\].content\[0\] is .*Only text and image"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "cat.png"}}]}],
            "which a server cannot open. .*image_base64_block",
        ),
        ([*ASKED, {"role": "user", "content": "y"}], r"before the tool calls a \(f\), b \(g\) are answered"),
        (
            [*ASKED, {"role": "tool", "content": "both"}, {"role": "user", "content": "y"}],
            r"messages\[3\] comes before the tool calls b \(g\) are answered",
        ),
        ([*ASKED, {"role": "tool", "tool_call_id": "c", "content": "1"}], "the open calls are a, b"),
        ([{"role": "tool", "tool_call_id": "c", "content": "1"}], "which is not open"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], r"messages\[0\].tool_calls\[0\] is "),
        ([{"role": "assistant", "tool_calls": ["a"]}], r"messages\[0\].tool_calls\[0\] is 'a'"),
    ],
)
def test_a_problem_names_its_message_and_a_remedy(messages: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_conversation(messages)


def test_tools_may_come_with_or_without_their_envelope() -> None:
    function = {"name": "f", "description": "does f", "parameters": {"type": "object", "properties": {}}}
    assert (
        check_tools([{"type": "function", "function": function}, function, {"name": "f", "description": "does f"}])
        == [{"type": "function", "function": function}] * 3
    )
    assert check_tools(None) == []


@pytest.mark.parametrize("tool", [{}, {"type": "function"}, {"function": {"description": "no name"}}, {"function": 5}])
def test_a_tool_without_a_name_is_refused(tool: Any) -> None:
    with pytest.raises(DataError, match=r"tools\[0\] is "):
        check_tools([tool])
