"""Answers that say nothing earn nothing, and what a model only thought is no answer."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.data.types import InProcessVerifier
from evsys_sdk.errors import EvalError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier

CALL = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
WANTED = [{"name": "search", "arguments": {"q": "x"}}]


async def reward(name: str, expected: Any, completion: str, **params: Any) -> float:
    messages: list[Any] = [{"role": "assistant", "content": completion}]
    verifier_input = VerifierInput("?", completion, messages=messages)
    return (await build_verifier(InProcessVerifier(name, expected, params))(verifier_input)).reward


@pytest.mark.parametrize(
    ("name", "expected", "params"),
    [
        ("exact_match", "", {}),
        ("exact_match", "  ", {}),
        ("exact_match", ["right", "\n"], {}),
        ("exact_match", "...", {"ignore_punctuation": True}),
        ("contains", "", {}),
        ("contains", ["right", " "], {"match": "any"}),
        ("regex_match", "", {}),
        ("numeric_match", "", {}),
        ("json_match", "", {}),
        ("json_match", {}, {"mode": "subset"}),
        ("python_tests", "", {}),
    ],
)
async def test_a_blank_expected_answer_is_an_error_of_the_task(
    name: str, expected: Any, params: dict[str, Any]
) -> None:
    for completion in ("", "anything", "{}"):
        with pytest.raises(EvalError):
            await reward(name, expected, completion, **params)


@pytest.mark.parametrize(
    ("completion", "earned"),
    [
        (CALL, 1.0),
        (f"<think>I should search.</think>{CALL}", 1.0),
        (f"<think>{CALL}</think>I will not.", 0.0),
        (f"<think>{CALL}", 0.0),
        (f"<think>{CALL}</think>{CALL}", 1.0),
        (f"<thinking>{CALL}</thinking>", 0.0),
        (f"```\n{CALL}\n```", 0.0),
        (f"~~~xml\n{CALL}", 0.0),
        (f"```\n{CALL}\n```\n{CALL}", 1.0),
        (f"I would write `{CALL}`, but not now.", 0.0),
        (f"> {CALL}", 0.0),
        (f"<!-- {CALL} -->", 0.0),
        (f"Here:\n{CALL}\nDone.", 1.0),
    ],
)
async def test_a_call_that_is_thought_or_quoted_was_not_made(completion: str, earned: float) -> None:
    assert await reward("tool_calls_match", WANTED, completion) == earned


@pytest.mark.parametrize(
    ("name", "expected", "completion", "params"),
    [
        ("json_match", {"a": 1}, '{"a": 2, "a": 1}', {}),
        ("json_match", {"o": {"a": 1}}, '{"o": {"a": 2}, "o": {"a": 1}}', {}),
        ("json_match", [{"a": 1}], 'so: [{"a": 2, "a": 1}]', {}),
        ("tool_calls_match", WANTED, CALL.replace('{"name"', '{"name": "delete", "name"'), {}),
        ("tool_calls_match", WANTED, CALL.replace('{"q"', '{"q": "y", "q"'), {}),
        (
            "format_only",
            None,
            '{"a": "no", "a": 1}',
            {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        ),
    ],
)
async def test_an_object_that_gives_a_key_twice_is_no_json(
    name: str, expected: Any, completion: str, params: dict[str, Any]
) -> None:
    assert await reward(name, expected, completion, **params) == 0.0
