"""exact_match, contains and regex_match."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import ConfigError, EvalError
from evsys_sdk.eval.answers.bounded_regex import match_within
from evsys_sdk.eval.verifiers.text_match import Contains, ExactMatch

from .scoring import reward, score

EVIL = "(a|aa)+$"
BAIT = "a" * 90 + "!"


@pytest.mark.parametrize(
    ("completion", "expected", "params", "earned"),
    [
        ("Paris", "Paris", {}, 1.0),
        (" Paris\n", "Paris ", {}, 1.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("<answer>Paris</answer>", "Paris", {}, 1.0),
        ("I think <answer>Paris</answer> it is", "Paris", {}, 1.0),
        ("<think>London?</think>Paris", "Paris", {}, 1.0),
        ("Paris", "Paris", {"require_answer_tag": True}, 0.0),
        ("Paris.", "Paris", {}, 0.0),
        ("Paris.", "Paris", {"ignore_punctuation": True}, 1.0),
        ("New   York", "New York", {}, 0.0),
        ("New \n York", "New York", {"collapse_whitespace": True}, 1.0),
        ("b", ["a", "b"], {}, 1.0),
        ("4", 4, {}, 1.0),
        ("true", True, {}, 1.0),
        ("e\u0301", "\u00e9", {}, 1.0),
        ("\ud800", "\ud800", {}, 1.0),
        ("x" * 1_000_000, "x" * 1_000_000, {}, 1.0),
    ],
)
async def test_exact_match(completion: str, expected: Any, params: dict[str, Any], earned: float) -> None:
    assert await reward("exact_match", completion, expected, **params) == earned


@given(st.text().filter(str.strip))
def test_every_text_that_is_not_blank_matches_itself(text: str) -> None:
    plain = ExactMatch(answer_tag=None, ignore_thinking=False)
    assert plain.verify(completion=text, target=text).reward == 1.0
    every = Contains(answer_tag=None, ignore_thinking=False)
    assert every.verify(completion=f"x{text.strip()}y", target=text.strip()).reward == 1.0


@pytest.mark.parametrize(
    ("completion", "expected", "params", "earned"),
    [
        ("the capital is Paris.", "Paris", {}, 1.0),
        ("the capital is paris.", "Paris", {}, 0.0),
        ("the capital is paris.", "Paris", {"ignore_case": True}, 1.0),
        ("a category", "cat", {}, 1.0),
        ("a category", "cat", {"whole_words": True}, 0.0),
        ("a cat.", "cat", {"whole_words": True}, 1.0),
        ("C++ is", "C++", {"whole_words": True}, 1.0),
        ("Marie", ["Marie", "Pierre"], {}, 0.0),
        ("Marie", ["Marie", "Pierre"], {"match": "any"}, 1.0),
        ("nobody", ["Marie", "Pierre"], {"match": "any"}, 0.0),
        ("<think>Paris</think>London", "Paris", {}, 0.0),
        ("Paris <answer>London</answer>", "Paris", {}, 0.0),
        ("Paris", "Paris", {"require_answer_tag": True}, 0.0),
    ],
)
async def test_contains(completion: str, expected: Any, params: dict[str, Any], earned: float) -> None:
    assert await reward("contains", completion, expected, **params) == earned


async def test_what_every_answer_contains_is_no_test() -> None:
    with pytest.raises(EvalError, match="verifier 'contains' on task 't1': an expected text is empty"):
        await reward("contains", "x", ["x", " "])


@pytest.mark.parametrize("name", ["exact_match", "contains", "numeric_match", "json_match"])
async def test_a_task_without_an_expected_answer_is_an_error(name: str) -> None:
    with pytest.raises(EvalError, match=f"verifier '{name}' on task 't1': .*no expected"):
        await reward(name, "x")


@pytest.mark.parametrize(
    ("completion", "expected", "params", "earned"),
    [
        ("on 2024-05-06", r"\d{4}-\d{2}-\d{2}", {}, 1.0),
        ("on 2024-05-06", r"\d{4}-\d{2}-\d{2}", {"how": "fullmatch"}, 0.0),
        ("on 2024-05-06", r"\d", {"how": "match"}, 0.0),
        ("<answer>42</answer>", r"^\d+$", {}, 1.0),
        ("ABC", "abc", {"ignore_case": True}, 1.0),
        ("a\nb", "^b$", {}, 0.0),
        ("a\nb", "^b$", {"multiline": True}, 1.0),
        ("a\nb", "a.b", {"dot_matches_newline": True}, 1.0),
        ("total: 42 euros", "42", {"pattern": r"total: (\d+)"}, 1.0),
        ("total: 43 euros", "42", {"pattern": r"total: (\d+)"}, 0.0),
        ("total: 43 euros", ["42", "43"], {"pattern": r"total: (\d+)"}, 1.0),
        ("total: 43 euros", None, {"pattern": r"total: (\d+)"}, 1.0),
        ("red", "red", {"pattern": "red|blue"}, 1.0),
        ("ab", "", {"pattern": "a(x)?b"}, 0.0),
        ("\x00\ud800 ü 😀", "ü 😀$", {}, 1.0),
    ],
)
async def test_regex_match(completion: str, expected: Any, params: dict[str, Any], earned: float) -> None:
    assert await reward("regex_match", completion, expected, **params) == earned


async def test_a_catastrophic_pattern_is_an_error_or_no_match_but_never_a_hang() -> None:
    with pytest.raises(EvalError, match=r"verifier 'regex_match' on task 't1': the regular expression .* timed out"):
        await reward("regex_match", BAIT, EVIL, timeout_s=0.2)
    result = await score("regex_match", BAIT, EVIL, timeout_s=0.2, on_timeout="no_match")
    assert result.reward == 0.0
    assert "timed out after 0.2 s" in result.info["timed_out"]
    assert await reward("regex_match", "aaa", EVIL) == 1.0


async def test_other_matches_continue_while_one_is_stuck() -> None:
    stuck = asyncio.create_task(match_within(1.0, EVIL, BAIT))
    await asyncio.sleep(0)
    for number in range(5):
        assert await match_within(10.0, r"(\d)", f"x{number}") == [str(number), str(number)]
    with pytest.raises(EvalError, match="timed out after 1 s"):
        await stuck


async def test_groups_that_take_no_part_are_none() -> None:
    assert await match_within(10.0, "a(x)?", "a") == ["a", None]
    assert await match_within(10.0, "a", "b") is None


async def test_a_long_text_is_matched() -> None:
    assert await match_within(30.0, "z$", "y" * 5_000_000 + "z") == ["z"]


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<a>x)(?P<a>y)"])
async def test_what_is_not_a_pattern_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"params.pattern: .* is not a regular expression"):
        await reward("regex_match", "x", None, pattern=pattern)
    with pytest.raises(EvalError, match=r"the expected pattern .* is not a regular expression"):
        await reward("regex_match", "x", pattern)


@pytest.mark.parametrize("expected", [None, "", 4, ["a"]])
async def test_there_is_no_match_without_a_pattern(expected: Any) -> None:
    with pytest.raises(EvalError, match="there is no pattern"):
        await reward("regex_match", "x", expected)
