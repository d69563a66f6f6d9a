"""Who is next among the requests of a model; no server needed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.server.answer import Refusal
from evsys_sdk.server.state.model import OperationTurns


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=6))
def test_any_order_of_arrival_gives_one_order_of_work(order: list[int], repeated: list[int]) -> None:
    turns, done = OperationTurns(), list[int]()
    arrivals = [*order, *repeated]
    random.Random(str(arrivals)).shuffle(arrivals)
    for number in arrivals:
        if not turns.is_taken(number):
            turns.take(number, lambda number=number: done.append(number))
    assert done == list(range(1, 9))
    assert turns.held == 0


def test_a_refused_number_is_used_up_and_refused_again() -> None:
    turns, done = OperationTurns(), list[int]()
    turns.take(2, lambda: done.append(2))
    turns.refuse(1, Refusal(400, "no"))
    assert done == [2]
    with pytest.raises(Refusal, match="no"):
        turns.is_taken(1)


def test_a_number_that_never_comes_is_given_up_with_those_behind_it() -> None:
    turns, done = OperationTurns(), list[int]()
    turns.take(1, lambda: done.append(1))
    assert turns.overdue(0) == []
    for number in (3, 5):
        turns.take(number, lambda number=number: done.append(number))
    assert turns.overdue(60) == [], "not yet"
    assert turns.overdue(0) == [2, 4]
    turns.take(6, lambda: done.append(6))
    assert done == [1, 6]
    with pytest.raises(Refusal, match="too late"):
        turns.is_taken(2)
    assert turns.is_taken(3)


def test_refusals_are_not_remembered_without_end() -> None:
    turns = OperationTurns()
    for number in range(1, 3000):
        turns.refuse(number, Refusal(400, "no"))
    assert turns.next == 3000
    assert turns.is_taken(1), "long ago, but not to be done again"
