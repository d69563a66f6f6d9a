"""The slug in an answer, however it is written, and None rather than a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.eval import extract_predicted_slug


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("GMAIL_SEND_EMAIL", "GMAIL_SEND_EMAIL"),
        ("  `gmail.send_email`.\n", "gmail.send_email"),
        ("**GMAIL_SEND_EMAIL**", "GMAIL_SEND_EMAIL"),
        ("<answer>A_B</answer>", "A_B"),
        ("first <answer>A_B</answer>, no: <answer> C_D </answer>", "C_D"),
        ("<answer>A_B", "A_B"),
        ('<answer>{"tool_slug": "A_B"}</answer>', "A_B"),
        ("<answer>the tool A_B</answer>", "A_B"),
        ("<answer>New York</answer>", "New York"),
        ("<think>maybe C_D</think>A_B", "A_B"),
        ("<think><answer>C_D</answer></think>\n<answer>A_B</answer>", "A_B"),
        ("left over</think><answer>A_B</answer>", "A_B"),
        ('<tool_call>\n{"name": "A_B", "arguments": {"to": "x_y"}}\n</tool_call>', "A_B"),
        ('```json\n{"tool": "A_B"}\n```', "A_B"),
        ('{"name": "A_B", "arguments": {}}', "A_B"),
        ('{"function": {"name": "A_B", "arguments": "{}"}}', "A_B"),
        ('["A_B"]', "A_B"),
        ('Use A_B with {"name": "Ada"}', "A_B"),
        ("I compared A_B and C_D.\n\nFinal answer: C_D", "C_D"),
        ("Some words.\n**Tool:** `weather`", "weather"),
        ("I would use A_B here, because A_B sends mail.", "A_B"),
        ("a_b it is. Yes: A_B", "A_B"),
        ("Paris", "Paris"),
        ("New York", "New York"),
    ],
)
def test_a_slug_is_found(text: str, slug: str) -> None:
    found = extract_predicted_slug(text)
    assert found is not None
    assert (found.casefold(), text.count(found) > 0) == (slug.casefold(), True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "...",
        "<answer></answer>",
        "<answer>A_B or C_D</answer>",
        "either A_B or C_D",
        "<think>A_B is surely right, because",
        "<think>A_B</think>",
        '<tool_call>{"name": "A_B"}</tool_call><tool_call>{"name": "C_D"}</tool_call>',
        "<tool_call>not json</tool_call>",
        "I do not know.\nSorry.",
    ],
)
def test_no_slug_or_several_are_none(text: str) -> None:
    assert extract_predicted_slug(text) is None


@given(st.text(alphabet='<answer>/think{}[]":_ab \n`', max_size=60))
def test_any_text_has_a_slug_or_none(text: str) -> None:
    slug = extract_predicted_slug(text)
    assert slug is None or (slug.strip() == slug and slug)


@pytest.mark.parametrize("text", ["a" * 200_000, "_" * 200_000, "{" * 200_000, "answer" * 30_000, "tool " * 40_000])
def test_strange_texts_end_soon_and_name_no_slug_that_is_not_there(text: str) -> None:
    slug = extract_predicted_slug(text)
    assert slug is None or slug in text
