"""tool_calls_match: calls next to the text, calls inside it, and calls that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.errors import EvalError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult

from .scoring import reward

SEARCH = {"name": "search", "arguments": {"query": "weather", "limit": 3}}
OPEN = {"name": "open", "arguments": {"id": 7}}


def said(*calls: dict[str, Any]) -> dict[str, Any]:
    """A message as OpenAI writes it: the arguments are a text."""
    written = [
        {"id": str(at), "type": "function", "function": {**call, "arguments": json.dumps(call["arguments"])}}
        for at, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": written}


async def judged(
    messages: list[dict[str, Any]], expected: Any, task: HarborTask | None = None, **params: Any
) -> VerificationResult:
    verifier = build_verifier(InProcessVerifier("tool_calls_match", expected, params))
    return await verifier(VerifierInput("q", "", messages, task=task))


@pytest.mark.parametrize(
    ("calls", "expected", "params", "earned"),
    [
        ([SEARCH], [SEARCH], {}, 1.0),
        ([SEARCH], SEARCH, {}, 1.0),
        ([SEARCH], "search", {}, 1.0),
        ([SEARCH], [{"name": "search"}], {}, 1.0),
        ([SEARCH], [{"function": {"name": "search", "arguments": '{"query": "weather", "limit": 3}'}}], {}, 1.0),
        ([SEARCH], [OPEN], {}, 0.0),
        ([SEARCH], [{"name": "search", "arguments": {"query": "weather"}}], {}, 0.0),
        ([SEARCH], [{"name": "search", "arguments": {"query": "weather"}}], {"arguments": "subset"}, 1.0),
        ([SEARCH], [{"name": "search", "arguments": {"query": "other"}}], {"arguments": "ignore"}, 1.0),
        ([SEARCH, OPEN], [SEARCH, OPEN], {}, 1.0),
        ([OPEN, SEARCH], [SEARCH, OPEN], {}, 0.0),
        ([OPEN, SEARCH], [SEARCH, OPEN], {"any_order": True}, 1.0),
        ([SEARCH, OPEN], [SEARCH], {}, 0.0),
        ([SEARCH, OPEN], [SEARCH], {"extra_calls": True}, 1.0),
        ([OPEN, SEARCH, OPEN, SEARCH], [SEARCH, OPEN], {"extra_calls": True}, 1.0),
        ([SEARCH], [SEARCH, OPEN], {}, 0.0),
        ([SEARCH], [SEARCH, OPEN], {"partial_credit": True}, 0.5),
        ([SEARCH, SEARCH, SEARCH, OPEN], [SEARCH, OPEN], {"partial_credit": True}, 0.5),
        ([SEARCH, SEARCH], [SEARCH], {"any_order": True}, 0.0),
        ([], [], {}, 1.0),
        ([SEARCH], [], {}, 0.0),
        ([], [SEARCH], {}, 0.0),
    ],
)
async def test_calls_are_compared(calls: Any, expected: Any, params: dict[str, Any], earned: float) -> None:
    in_one_turn = [{"role": "user", "content": "q"}, said(*calls)]
    one_by_one = [said(call) for call in calls] or [{"role": "assistant", "content": "no call"}]
    in_text = "".join(f"ok <tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    assert (await judged(in_one_turn, expected, **params)).reward == earned
    assert (await judged(one_by_one, expected, **params)).reward == earned
    assert (await judged([{"role": "assistant", "content": in_text}], expected, **params)).reward == earned
    assert await reward("tool_calls_match", in_text, expected, **params) == earned


async def test_only_the_last_turn_counts_where_that_is_requested() -> None:
    messages = [said(SEARCH), {"role": "tool", "content": "sunny"}, said(OPEN)]
    assert (await judged(messages, [OPEN])).reward == 0.0
    assert (await judged(messages, [OPEN], turns="last")).reward == 1.0


async def test_calls_of_the_conversation_that_a_task_begins_with_are_not_the_policys() -> None:
    context = [{"role": "user", "content": "example"}, said(SEARCH), {"role": "tool", "content": "sunny"}]
    task = HarborTask("t1", "q", InProcessVerifier("tool_calls_match"), {"context_messages": context})
    assert (await judged([*context, said(OPEN)], [OPEN], task)).reward == 1.0
    assert (await judged([*context, {"role": "assistant", "content": "no"}], [SEARCH], task)).reward == 0.0


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call>{broken</tool_call>",
        '<tool_call>{"name": "search"',
        '<tool_call>"search"</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "{broken"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>" + "[" * 100_000,
    ],
    ids=range(8),
)
async def test_a_call_that_cannot_be_read_is_a_wrong_call_and_is_counted(written: str) -> None:
    decision = await judged([{"role": "assistant", "content": written}], ["search"], arguments="ignore")
    assert (decision.reward, decision.info["unreadable"]) == (0.0, 1)
    assert (await judged([{"role": "assistant", "content": written}], [])).reward == 0.0


async def test_arguments_may_be_a_text_an_object_or_absent() -> None:
    for arguments in ({}, "", "{}", None):
        call = {"function": {"name": "now", "arguments": arguments}}
        assert (
            await judged([{"role": "assistant", "tool_calls": [call]}], [{"name": "now", "arguments": {}}])
        ).reward == 1
    other_words = '<tool_call>[{"name": "a", "parameters": {"x": 1}}, {"name": "b", "input": {"y": 2}}]</tool_call>'
    expected = [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {"y": 2}}]
    assert await reward("tool_calls_match", other_words, expected) == 1.0


async def test_another_tag_can_be_named_and_texts_left_alone() -> None:
    text = f"<call>{json.dumps(SEARCH)}</call>"
    assert await reward("tool_calls_match", text, [SEARCH], tag="call") == 1.0
    assert await reward("tool_calls_match", text, [], tag=None) == 1.0


@pytest.mark.parametrize("expected", [None, [None], [3], [""], {"arguments": {}}])
async def test_expectations_that_are_none_are_errors_of_the_task(expected: Any) -> None:
    with pytest.raises(EvalError, match=r"verifier 'tool_calls_match' on task 't1': .*expected call"):
        await reward("tool_calls_match", "x", expected)


async def test_ten_thousand_calls_are_judged() -> None:
    text = f"<tool_call>{json.dumps(OPEN)}</tool_call>" * 10_000
    assert await reward("tool_calls_match", text, [OPEN, OPEN], extra_calls=True) == 1.0
    assert await reward("tool_calls_match", text, [OPEN, OPEN], extra_calls=True, any_order=True) == 1.0
