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
    given = VerifierInput("?", completion, messages=messages)
    return (await build_verifier(InProcessVerifier(name, expected, params))(given)).reward


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
    ],
)
async def test_a_call_in_a_thought_was_not_made(completion: str, earned: float) -> None:
    assert await reward("tool_calls_match", WANTED, completion) == earned
