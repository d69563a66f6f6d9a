"""Which tasks are the same, exactly and as questions."""

from __future__ import annotations

import pytest

from evsys_sdk.data.task_identity import duplicate_key, task_id, task_key, task_list_id
from evsys_sdk.data.types import HarborTask, InProcessVerifier

TEXT = "Which queue answers this ticket about the budget plan?"


def task(text: str = TEXT, expected: str = "billing", name: str = "t1", fn: str = "exact_match") -> HarborTask:
    return HarborTask(name, text, InProcessVerifier(fn, expected=expected))


@pytest.mark.parametrize(
    "other",
    [
        "which QUEUE answers   this ticket\nabout the budget plan",
        "Which <b>queue</b> answers this <span class='x'>tic</span>ket about the budget plan?<br>",
        "Which qu\u200beue answers th\u00adis ticket ab\u2060out the budget plan?",
        "Which queue \u0430nswers this tick\u0435t \u03b1b\u03bfut the budget \u0440lan?",
        "\uff37hich queue answers this ticket about the \U0001d41budget plan?",
        '"Which queue answers this ticket about the **budget** plan?"',
        "Which queue answers this ticket about the &#98;udget plan&quest;",
    ],
)
def test_a_question_keeps_its_key_however_it_is_spelled(other: str) -> None:
    assert task_key(other) == task_key(TEXT) == "which queue answers this ticket about the budget plan"
    assert task_id(task(other)) != task_id(task())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 3.5 + 2?", "What is 35 + 2?"),
        ("What is 2*3?", "What is 23?"),
        ("What is 5!", "What is 5"),
        ("Is a < b and c > d?", "Is a d?"),
        ("mail the budget plan", "mail the holiday plan"),
        ("rename my_old_name", "rename myoldname"),
    ],
)
def test_different_questions_have_different_keys(one: str, other: str) -> None:
    assert task_key(one) != task_key(other)


def test_the_exact_id_covers_answer_and_verifier_and_the_key_does_not() -> None:
    changed = [task(expected="sales"), task(fn="numeric_match"), task(name="t2")]
    assert len({task_id(one) for one in [task(), *changed]}) == 4
    assert {task_key(one) for one in changed} == {task_key(task())}
    assert duplicate_key(task(name="t2")) == duplicate_key(task()) != duplicate_key(task(expected="sales"))


def test_the_conversation_before_an_instruction_is_part_of_the_question() -> None:
    shown = [{"role": "user", "content": "Compare Rome and Oslo."}]
    longer = HarborTask("t1", TEXT, task().verifier, {"context_messages": shown, "note": "x"})
    assert task_key(longer) == f"compare rome and oslo {task_key(TEXT)}"


def test_a_list_of_tasks_has_an_order() -> None:
    first, other = task("first question"), task("second question", name="t2")
    assert task_list_id([first, other]) != task_list_id([other, first])


def test_ids_are_those_of_earlier_records() -> None:
    """Predictions and score lines on disk carry these hashes."""
    assert task_id(task()) == "dd1d630b9a53e398"
    assert task_list_id([task()]) == "9dd5482382813e72812607da70422fdd1fd1f44481d6813841f77c804bb1d381"
