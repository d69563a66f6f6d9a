"""format_only: the form counts, the content does not."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.errors import ConfigError, EvalError

from .scoring import reward, score


@pytest.mark.parametrize(
    ("completion", "params", "earned"),
    [
        ("so <answer>4</answer>", {}, 1.0),
        ("<answer>wrong but well formed</answer>", {}, 1.0),
        ("4", {}, 0.0),
        ("<answer> </answer>", {}, 0.0),
        ("<answer>4", {}, 0.0),
        ("<answer>4</answer><answer>5</answer>", {}, 0.0),
        ("</answer>4<answer>", {}, 0.0),
        ("<answer>4</answer> done", {"nothing_else": True}, 0.0),
        (" <answer>4</answer>\n", {"nothing_else": True}, 1.0),
        ("<think><answer>4</answer></think>", {}, 0.0),
        ("<THINK>so <answer>4</answer></THINK> <answer>5</answer>", {}, 1.0),
        ("<think>a</think><answer>b</answer>", {"tags": ["think", "answer"]}, 1.0),
        ("<answer>b</answer><think>a</think>", {"tags": ["think", "answer"]}, 0.0),
        ("<think>a<answer>b</answer></think>", {"tags": ["think", "answer"]}, 0.0),
        ("<think>a</think> x <answer>b</answer>", {"tags": ["think", "answer"], "nothing_else": True}, 0.0),
        ("2024-05-06", {"pattern": r"\d{4}-\d\d-\d\d"}, 1.0),
        ("on 2024-05-06", {"pattern": r"\d{4}-\d\d-\d\d"}, 0.0),
        ("two\nlines", {"pattern": "two.lines"}, 1.0),
        ('{"a": 1}', {"json_schema": {"type": "object", "required": ["a"]}}, 1.0),
        ('{"b": 1}', {"json_schema": {"type": "object", "required": ["a"]}}, 0.0),
        ("no json", {"json_schema": {}}, 0.0),
        ('<answer>{"a": 1}</answer>', {"tags": ["answer"], "json_schema": {"type": "object"}}, 1.0),
        ('{"a": 1}', {"tags": ["answer"], "json_schema": {"type": "object"}}, 0.0),
        ("<answer>" * 100_000, {}, 0.0),
    ],
)
async def test_the_form_alone_earns_the_reward(completion: str, params: dict[str, Any], earned: float) -> None:
    assert await reward("format_only", completion, "whatever", **params) == earned


async def test_what_is_wrong_is_listed() -> None:
    result = await score("format_only", "4", None, tags=["answer"], pattern="5", json_schema={"type": "string"})
    assert result.info["wrong"] == [
        "<answer> occurs 0 times and </answer> 0 times; each should occur once",
        "it does not match the pattern",
        "the value should be of type string",
    ]


async def test_a_catastrophic_pattern_is_an_error() -> None:
    with pytest.raises(EvalError, match=r"timed out after 0\.2 s"):
        await reward("format_only", "a" * 90 + "!", None, pattern="(a|aa)+", timeout_s=0.2)


@pytest.mark.parametrize("params", [{"tags": []}, {"pattern": "("}, {"json_schema": {"nonsense": 1}}, {"tag": ["x"]}])
async def test_a_form_that_makes_no_sense_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="verifier 'format_only': params"):
        await reward("format_only", "x", None, **params)
