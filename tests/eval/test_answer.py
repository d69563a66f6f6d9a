"""Which part of a completion is the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import EvalError
from evsys_sdk.eval.answers.answer import (
    AnswerParams,
    all_tagged,
    code_blocks,
    extract_answer,
    last_boxed,
    last_tagged,
    texts_of_expected,
    without_thinking,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plain", "plain"),
        ("  padded \n", "padded"),
        ("so <answer> 4 </answer> it is", "4"),
        ("<answer>3</answer> no, <answer>4</answer>", "4"),
        ("<answer>never closed", "<answer>never closed"),
        ("</answer><answer>", "</answer><answer>"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer></answer>", ""),
        ("", ""),
    ],
)
def test_the_last_closed_tag_is_the_answer(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>is it 3?</think>4", "4"),
        ("reasoning that began in the prompt</think>4", "4"),
        ("4<think>or is it", "4"),
        ("<think>never done", ""),
        ("<thinking>3</thinking>4", "4"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("no reasoning", "no reasoning"),
    ],
)
def test_reasoning_is_left_out(text: str, rest: str) -> None:
    assert without_thinking(text) == rest


def test_an_answer_inside_the_reasoning_does_not_count() -> None:
    text = "<think><answer>4</answer></think>I do not know"
    assert AnswerParams().answer_in(text) == "I do not know"
    assert AnswerParams(ignore_thinking=False).answer_in(text) == "4"
    assert AnswerParams(require_answer_tag=True).answer_in(text) is None
    assert AnswerParams(answer_tag=None).answer_in("<answer>4</answer>") == "<answer>4</answer>"
    assert AnswerParams(answer_tag="final").answer_in("<final>4</final>") == "4"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed{never closed", None),
        ("no box", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_is_found_with_its_braces(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```python\na = 1\n```", ["a = 1\n"]),
        ("```\nplain\n```\nand\n```js\nlet a\n```", ["plain\n"]),
        ("~~~py\na\n~~~", ["a\n"]),
        ("````python\n```\ninner\n```\n````", ["```\ninner\n```\n"]),
        ("```python\ncut off", ["cut off"]),
        ("no code", []),
        ("``` python\nspaced\n```", ["spaced\n"]),
        ("Here: ```python\na\n```", ["a\n"]),
        ("```python title=x\na\n```", ["a\n"]),
        ("inline ```python a``` only", []),
        ("```python\ns = 1\n``` no end\n```", ["s = 1\n``` no end\n"]),
        ("```Python\ncapital\n```", ["capital\n"]),
    ],
)
def test_code_blocks_are_found_by_language(text: str, blocks: list[str]) -> None:
    assert code_blocks(text, "python", "py", "") == blocks


def test_expected_answers_are_texts() -> None:
    assert texts_of_expected("a") == ["a"]
    assert texts_of_expected(4) == ["4"]
    assert texts_of_expected(True) == ["true"]
    assert texts_of_expected(["a", 1.5, {"k": "ü"}]) == ["a", "1.5", '{"k":"ü"}']
    for nothing in (None, [], ["a", None]):
        with pytest.raises(EvalError, match="no expected answer"):
            texts_of_expected(nothing)


@given(st.text(), st.text())
def test_what_is_tagged_is_found_again(before: str, inside: str) -> None:
    text = f"{before}<answer>{inside.replace('<', '')}</answer>"
    assert last_tagged(text, "answer") == inside.replace("<", "")


@pytest.mark.parametrize(
    "text",
    ["<answer>" * 200_000, "</answer>" * 200_000, r"\boxed{" * 100_000, "```\n" * 200_000, "<think>" * 200_000],
    ids=["opened", "closed", "boxed", "fences", "thinking"],
)
def test_endless_nonsense_is_read_in_passing(text: str) -> None:
    assert AnswerParams().answer_in(text) is not None
    assert len(all_tagged(text, "answer")) in (0, 200_000)
    assert last_boxed(text) is None
    assert isinstance(code_blocks(text), list)
