"""Whatever is left out of an answer is left out of what is expected: the expected answer itself earns everything."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk import VerificationResult, get_verifier
from tests.eval.scoring import reward

WORDS = st.text(alphabet="abc XYZ,.0", min_size=1, max_size=12).filter(str.strip)
NUMBERS = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False).map(lambda value: round(value, 4))
VALUES = st.recursive(
    st.booleans() | st.integers(-1000, 1000) | st.text(alphabet="abc é", min_size=1, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="abc", min_size=1), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: isinstance(value, dict | list))


def earned(name: str, completion: str, expected: Any, **params: Any) -> float:
    return asyncio.run(reward(name, completion, expected, **params))


@pytest.mark.parametrize("form", ["{}", "<answer>{}</answer>", "<think>hm</think><answer>{}</answer>", "{}\n"])
@pytest.mark.parametrize("name", ["exact_match", "contains"])
@given(expected=WORDS)
def test_the_expected_text_earns_everything(name: str, form: str, expected: str) -> None:
    assert earned(name, form.format(expected), expected) == 1.0
    assert earned(name, form.format(expected), f"<answer>{expected}</answer>") == 1.0


@pytest.mark.parametrize("name", ["exact_match", "contains", "numeric_match"])
def test_tags_count_on_neither_side(name: str) -> None:
    for expected in ("<answer>7</answer>", "7", ["<answer>7</answer>", "<answer>7</answer>"]):
        for completion in ("7", "<answer>7</answer>"):
            assert earned(name, completion, expected) == 1.0
            assert earned(name, completion, expected, answer_tag="answer", ignore_thinking=False) == 1.0
        assert earned(name, "<answer>7</answer>", expected, require_answer_tag=True) == 1.0
        assert earned(name, "8", expected) == 0.0


@given(expected=NUMBERS)
def test_the_expected_number_earns_everything(expected: float) -> None:
    assert earned("numeric_match", f"so it is <answer>{expected}</answer>", expected) == 1.0
    assert earned("numeric_match", str(expected), f"<answer>{expected}</answer>") == 1.0


@given(expected=VALUES)
def test_the_expected_value_earns_everything(expected: Any) -> None:
    text = json.dumps(expected, ensure_ascii=False)
    for completion in (text, f"<answer>{text}</answer>", f"```json\n{text}\n```"):
        assert earned("json_match", completion, expected) == 1.0
        assert earned("json_match", completion, f"<answer>{text}</answer>") == 1.0


def test_a_pattern_may_ask_for_the_tag() -> None:
    for expected in ("<answer>x+</answer>", "x+", re.escape("<answer>xx</answer>")):
        assert earned("regex_match", "<answer>xx</answer>", expected) == 1.0
    assert earned("regex_match", "n: 7", "<answer>7</answer>", pattern=r"n: (\d)") == 1.0
    assert earned("regex_match", "<answer>y</answer>", "<answer>x+</answer>") == 0.0


@given(name=st.text(alphabet="abc_", min_size=1), arguments=st.dictionaries(st.sampled_from("xyz"), st.integers()))
def test_the_expected_call_earns_everything(name: str, arguments: dict[str, int]) -> None:
    call = {"name": name, "arguments": arguments}
    assert earned("tool_calls_match", f"<tool_call>{json.dumps(call)}</tool_call>", [call]) == 1.0


@pytest.mark.parametrize(
    ("name", "completion", "target"),
    [
        ("exact_match", "a", "a"),
        ("contains", "an a", "a"),
        ("numeric_match", "7", 7),
        ("json_match", "[1]", [1]),
        ("regex_match", "aa", "a+"),
        ("format_only", "<answer>a</answer>", None),
        ("tool_calls_match", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', [{"name": "f"}]),
    ],
)
async def test_a_built_in_verifier_takes_the_documented_call(name: str, completion: str, target: Any) -> None:
    found = get_verifier(name)().verify(prompt="a question", completion=completion, target=target)
    result = await found if inspect.isawaitable(found) else found
    assert isinstance(result, VerificationResult)
    assert result.reward == 1.0
    with pytest.raises(TypeError, match="takes no 'tolerance'"):
        get_verifier(name)().verify(prompt="", completion="", target="", tolerance=1)
