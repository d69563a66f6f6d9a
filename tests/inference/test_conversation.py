from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.data.chat import image_base64_block, image_url_block, text_block
from evsys_sdk.data.types import ChatMessagesRow
from evsys_sdk.errors import DataError
from evsys_sdk.inference import row_messages
from evsys_sdk.inference.conversation import find_supervised_turns, join_thinking, split_thinking, text_messages

QUESTION = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}


def test_a_target_kept_apart_becomes_the_last_turn_and_the_row_stays_as_it_was() -> None:
    row = ChatMessagesRow([QUESTION], target_assistant="4")
    assert row_messages(row) == [QUESTION, ANSWER]
    assert row.messages == [QUESTION]


def test_an_empty_target_is_still_an_answer() -> None:
    assert row_messages(ChatMessagesRow([QUESTION], target_assistant=""))[-1] == {"role": "assistant", "content": ""}


def test_a_target_that_repeats_the_last_turn_is_not_added_again() -> None:
    blocks = {"role": "assistant", "content": [text_block("4")]}
    assert row_messages(ChatMessagesRow([QUESTION, ANSWER], target_assistant="4")) == [QUESTION, ANSWER]
    assert row_messages(ChatMessagesRow([QUESTION, blocks], target_assistant="4")) == [QUESTION, blocks]


def test_a_row_without_target_keeps_its_messages_in_its_own_list() -> None:
    row = ChatMessagesRow([QUESTION, ANSWER])
    messages = row_messages(row)
    messages.append(QUESTION)
    assert row.messages == [QUESTION, ANSWER]


def test_two_different_answers_are_refused() -> None:
    with pytest.raises(DataError, match=r"'4'.*target_assistant is '5'.*Remove one"):
        row_messages(ChatMessagesRow([QUESTION, ANSWER], target_assistant="5"))


def test_text_blocks_are_joined_and_other_fields_stay() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [text_block("a"), text_block("\nb")], "name": "ada"},
        {"role": "assistant", "content": None},
    ]
    assert text_messages(messages) == [
        {"role": "user", "content": "a\nb", "name": "ada"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
@pytest.mark.parametrize("wrapped", [True, False])
def test_calls_have_one_form_and_their_arguments_are_objects(arguments: Any, wrapped: bool) -> None:
    function: dict[str, Any] = {"name": "f", "arguments": arguments}
    call = {**({"function": function} if wrapped else function), "id": "c1"}
    (message,) = text_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", [1], 3])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(DataError, match=r"messages\[0\]\.tool_calls\[0\]\.function\.arguments is .*, not an object"):
        text_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])


@pytest.mark.parametrize(
    "image", [image_url_block("cat.png"), image_base64_block("image/png", "AA=="), {"type": "image"}]
)
def test_an_image_is_refused_where_it_stands(image: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"messages\[1\]\.content\[1\] is an image, but only text"):
        text_messages([QUESTION, {"role": "user", "content": [text_block("see"), image]}])


@pytest.mark.parametrize("block", [{"type": "tool_use", "id": "x"}, {"type": "text"}, "loose text"])
def test_a_block_that_is_not_text_is_refused(block: Any) -> None:
    with pytest.raises(DataError, match=r"messages\[0\]\.content\[0\] is a block of type .* only text can be rendered"):
        text_messages([{"role": "user", "content": [block]}])


def test_content_that_is_neither_text_nor_blocks_is_refused() -> None:
    with pytest.raises(DataError, match=r"messages\[0\]\.content must be text or a list of content blocks, not 7"):
        text_messages([{"role": "user", "content": 7}])


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x"}, r"messages\[1\]\.role is None\. Use"),
        ({"role": "function", "content": "x"}, r"messages\[1\]\.role is 'function'\. Use"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
            "role user and tool_calls",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, r"messages\[1\] has function_call"),
    ],
)
def test_what_no_template_writes_is_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        text_messages([QUESTION, message])


def test_a_developer_is_what_templates_call_system() -> None:
    assert text_messages([{"role": "developer", "content": "Be brief."}])[0]["role"] == "system"


def test_which_turns_carry_loss() -> None:
    messages = [ANSWER, QUESTION, ANSWER, QUESTION]
    assert find_supervised_turns(messages, "all_assistant") == [0, 2]
    assert find_supervised_turns(messages, "last_assistant") == [2]


@pytest.mark.parametrize(
    ("messages", "roles"), [([QUESTION, QUESTION], "user, user"), ([], "the conversation is empty")]
)
def test_a_conversation_with_nothing_to_learn_is_refused(messages: list[dict[str, Any]], roles: str) -> None:
    with pytest.raises(DataError, match=rf"no assistant turn to train on \(roles: .*{roles}\).*target_assistant"):
        find_supervised_turns(messages, "all_assistant")


def test_an_unknown_choice_of_turns_is_refused() -> None:
    with pytest.raises(DataError, match="supervise is 'everything'; use all_assistant or last_assistant"):
        find_supervised_turns([ANSWER], "everything")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nhm\n</think>\n\n4", ("hm", "4")),
        ("<think>hm</think>4", ("hm", "4")),
        ("\n<think>\n\n</think>\n\n4", ("", "4")),
        ("4", ("", "4")),
        ("<think>\nnever closed", ("", "<think>\nnever closed")),
        ("4 <think>late</think>", ("", "4 <think>late</think>")),
    ],
)
def test_thinking_is_distinguished_from_the_answer(text: str, parts: tuple[str, str]) -> None:
    assert split_thinking(text) == parts
    assert split_thinking(join_thinking(*parts)) == parts
