"""Dicts <-> typed rows: detection, strictness, and what the last step of a pipeline does about extra fields."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data import (
    ChatMessagesRow,
    E2BVerifier,
    HarborTask,
    InProcessVerifier,
    LLMJudgeVerifier,
    PromptExample,
    TargetFormat,
    detect_format,
    from_dict,
    iter_jsonl,
    parse_rows,
    to_dict,
)
from evsys_sdk.errors import DataError

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER, {"role": "assistant", "content": "hello"}], "metadata": {}}
VERIFIER = {"kind": "in_process", "fn_name": "exact_match", "expected": "4", "params": {}}
TASK = {"task_id": "t1", "instruction": "2+2?", "verifier": VERIFIER, "metadata": {"level": 1}}
EXAMPLE = {"inputs": {"question": "2+2?"}, "expected": 4, "metadata": {}}


def refusal(row: Any) -> str:
    with pytest.raises(DataError) as caught:
        from_dict(row)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (CHAT, "chat_messages"),
        (TASK, "harbor_task"),
        (EXAMPLE, "prompt_dataset"),
        ({**TASK, "messages": [USER]}, "harbor_task"),
        ({**EXAMPLE, "messages": [USER]}, "chat_messages"),
        ({"messages": "text"}, "unknown"),
        ({"inputs": "text", "targets": "text"}, "unknown"),
        ({"instruction": "do", "output": "done"}, "unknown"),
        ({}, "unknown"),
        ([], "unknown"),
        (None, "unknown"),
    ],
)
def test_the_format_of_a_row_is_seen_by_its_keys(row: Any, found: str) -> None:
    assert detect_format(row) == found


@pytest.mark.parametrize("row", [CHAT, {**CHAT, "target_assistant": "hello"}, TASK, EXAMPLE])
def test_rows_go_there_and_back(row: dict[str, Any]) -> None:
    assert to_dict(from_dict(row)) == row


@pytest.mark.parametrize(
    "verifier",
    [
        InProcessVerifier("contains", expected=["a"], params={"all": True}),
        E2BVerifier("FROM python", "pytest", "state = 1"),
        LLMJudgeVerifier("some-model", "Be kind."),
    ],
)
def test_every_verifier_goes_there_and_back_inside_its_task(verifier: Any) -> None:
    task = HarborTask("t", "do it", verifier, {"topic": "x"})
    again = from_dict(json.loads(json.dumps(to_dict(task))))
    assert again == task
    assert isinstance(again, HarborTask)
    assert again.verifier.kind == to_dict(verifier)["kind"]


def test_optional_keys_have_defaults() -> None:
    assert from_dict({"messages": [USER]}) == ChatMessagesRow([USER])
    assert from_dict({"inputs": {}}) == PromptExample({})
    short = {"task_id": "t", "instruction": "do", "verifier": {"kind": "in_process", "fn_name": "f"}}
    assert from_dict(short) == HarborTask("t", "do", InProcessVerifier("f"))


def test_null_metadata_means_none_because_column_stores_write_it() -> None:
    assert from_dict({"messages": [USER], "metadata": None}) == ChatMessagesRow([USER])


def test_typed_rows_are_frozen_have_no_dict_and_survive_pickling() -> None:
    row = from_dict(TASK)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.metadata = {}  # type: ignore[misc]
    assert not hasattr(row, "__dict__")
    assert pickle.loads(pickle.dumps(row)) == row


def test_the_keys_of_a_message_that_we_do_not_know_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "video", "url": "x"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    row = {"messages": messages, "metadata": {}}
    assert to_dict(from_dict(row)) == row


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**CHAT, "metdata": {}, "metadata": {}}, "unknown key 'metdata'"),
        ({"messages": [USER], "metdata": {}}, "did you mean 'metadata'?"),
        ({"messages": [USER], "toolkit": "x"}, "belongs under 'metadata'"),
        ({"messages": []}, "non-empty list"),
        ({"messages": {"role": "user"}}, "non-empty list"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [USER, {"role": "asistant", "content": "x"}]}, "did you mean 'assistant'?"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "'messages[0].role' is ['user']"),
        ({"messages": [{"content": "x"}]}, "'messages[0].role' is missing; the message has the keys content"),
        ({"messages": [{"from": "human", "value": "x"}]}, "sharegpt_to_chat"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content' is missing"),
        ({"messages": [{"role": "user", "content": None}]}, "'messages[0].content' is null"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be text or a non-empty list"),
        ({"messages": [{"role": "user", "content": []}]}, "must be text or a non-empty list"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0] must be a block"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text block without 'text'"),
        ({"messages": [USER], "metadata": "x"}, "'metadata' must be an object"),
        ({"messages": [USER], "target_assistant": 3}, "'target_assistant' must be text"),
        ({"instruction": "do", "verifier": VERIFIER}, "needs 'task_id'"),
        ({**TASK, "task_id": 7}, "'task_id' must be non-empty text, not 7"),
        ({**TASK, "instruction": None}, "'instruction' must be text"),
        ({**TASK, "verifier": "exact_match"}, "'verifier' must be an object"),
        ({**TASK, "verifier": {"fn_name": "f"}}, "'verifier.kind' is missing"),
        ({**TASK, "verifier": {"kind": "inprocess"}}, "did you mean 'in_process'?"),
        ({**TASK, "verifier": {"kind": ["e2b"]}}, "use one of in_process, e2b, llm_judge"),
        ({**TASK, "verifier": {"kind": "in_process"}}, "'verifier.fn_name' must be non-empty text"),
        ({**TASK, "verifier": {**VERIFIER, "expcted": 1}}, "unknown key 'verifier.expcted'"),
        ({**TASK, "verifier": {**VERIFIER, "params": [1]}}, "'verifier.params' must be an object"),
        ({**EXAMPLE, "inputs": "text"}, "'inputs' must be an object"),
        ({"query": "x", "tool_slug": "y"}, "it has the keys query, tool_slug"),
        ({"conversations": []}, "sharegpt_to_chat"),
        ({}, "it has the keys (none)"),
        (3, "a row must be a dict"),
    ],
)
def test_a_row_that_is_wrong_is_refused_with_the_place_and_the_remedy(row: Any, says: str) -> None:
    assert says in refusal(row)


def test_to_dict_refuses_what_is_no_typed_row() -> None:
    with pytest.raises(DataError, match="typed row, not dict"):
        to_dict({})  # type: ignore[arg-type]


def test_a_file_may_mix_formats(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (CHAT, TASK, EXAMPLE)), encoding="utf-8")
    assert [type(row) for row in iter_jsonl(path)] == [ChatMessagesRow, HarborTask, PromptExample]


def test_a_bad_row_in_a_file_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(CHAT)}\n\n{json.dumps({'messages': []})}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows.jsonl:3: 'messages' must be a non-empty list"):
        list(iter_jsonl(path))


def test_fields_that_a_pipeline_kept_become_metadata() -> None:
    row = {**CHAT, "query": "hi", "metadata": {"level": 1}}
    assert next(parse_rows([row])) == ChatMessagesRow(CHAT["messages"], {"level": 1, "query": "hi"})
    assert row["metadata"] == {"level": 1}, "the row that came in is not changed"


def test_a_field_that_contradicts_its_metadata_is_refused_and_one_that_repeats_it_is_not() -> None:
    same = {**CHAT, "level": 1, "metadata": {"level": 1}}
    assert next(parse_rows([same])).metadata == {"level": 1}
    with pytest.raises(DataError, match=r"row 2: 'level' is both in the row \(2\) and in its metadata \(1\)"):
        list(parse_rows([same, {**same, "level": 2}]))


@pytest.mark.parametrize("typo", ["metdata", "Metadata", "target_asistant"])
def test_a_field_that_looks_like_a_typing_mistake_is_refused_even_at_the_end_of_a_pipeline(typo: str) -> None:
    with pytest.raises(DataError, match=f"train.jsonl: row 1: unknown key '{typo}'; did you mean"):
        list(parse_rows([{"messages": [USER], typo: None}], source="train.jsonl"))


def test_a_target_decides_between_formats() -> None:
    both = {**TASK, "messages": [USER]}
    assert isinstance(next(parse_rows([both], TargetFormat.CHAT_MESSAGES)), ChatMessagesRow)
    assert isinstance(next(parse_rows([both], TargetFormat.HARBOR_TASK)), HarborTask)
    typed = [ChatMessagesRow([USER])]
    assert list(parse_rows(typed, "chat_messages")) == typed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "target", "says"),
    [
        (
            CHAT,
            TargetFormat.HARBOR_TASK,
            "it is a chat_messages row. Add them, or convert rows with the transform chat_to",
        ),
        (TASK, TargetFormat.PROMPT_DATASET, "needs 'inputs', but it is a harbor_task row"),
        ({"query": "x"}, TargetFormat.CHAT_MESSAGES, "it has the keys query"),
        (
            PromptExample({}),
            TargetFormat.CHAT_MESSAGES,
            "this is a prompt_dataset row. Use the transform jsonl_to_chat",
        ),
        (7, None, "a row must be a dict, not int"),
    ],
)
def test_a_row_of_the_wrong_format_is_refused_with_the_transform_to_use(row: Any, target: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        list(parse_rows([row], target, source="d.jsonl"))
    assert str(caught.value).startswith("d.jsonl: row 1: ")
    assert says in str(caught.value)


def test_typed_rows_pass_through_and_are_checked_too() -> None:
    good = ChatMessagesRow([USER])
    assert list(parse_rows([good])) == [good]
    with pytest.raises(DataError, match="row 2: 'messages' must be"):
        list(parse_rows([good, ChatMessagesRow([])]))


def test_rows_are_parsed_one_at_a_time_from_an_endless_source() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            yield {**CHAT, "number": number, f"key_{number % 3000}": 1}

    rows = list(itertools.islice(parse_rows(endless()), 4000))
    assert rows[3999].metadata == {"number": 3999, "key_999": 1}


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("given", [[TOOL], [TOOL["function"]], json.dumps([TOOL])])
def test_tools_of_a_row_have_one_form(given: Any) -> None:
    chat, task = parse_rows(
        [
            {"messages": [{"role": "user", "content": "hi"}], "tools": given},
            {"task_id": "t", "instruction": "hi", "verifier": {"kind": "in_process", "fn_name": "f"}, "tools": given},
        ]
    )
    assert isinstance(chat, ChatMessagesRow)
    assert isinstance(task, HarborTask)
    assert chat.tools == task.tools == [TOOL]
    assert [from_dict(to_dict(row)) for row in (chat, task)] == [chat, task]
    assert "tools" not in to_dict(ChatMessagesRow(chat.messages))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": ["search"]}, r"tools\[0\] is 'search'; it must look like"),
        ({"tools": "none"}, "'tools' is 'none', which is not JSON"),
        ({"metadata": {"tools": [TOOL]}}, "'metadata.tools' holds tool definitions"),
    ],
)
def test_tools_that_no_prompt_would_show_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        list(parse_rows([{"messages": [{"role": "user", "content": "hi"}], **fields}]))
