"""Rows hold every sequence once, within the budget, and shared beginnings only once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.local.base.packing import MicroBatch, pack, split  # noqa: E402

sequences_of = st.lists(
    st.builds(
        lambda start, rest: np.array([7] * start + rest, np.int64),
        st.sampled_from([0, 3, 20, 40]),
        st.lists(st.integers(0, 2), min_size=1, max_size=30),
    ),
    min_size=1,
    max_size=12,
)


def assert_whole(batch: MicroBatch, sequences: Sequence[np.ndarray]) -> None:
    """Every member can be read off its places, at the right positions, and sees itself and nothing else."""
    seen_by = {}
    for segment in batch.segments:
        prefix = range(segment.prefix_start, segment.prefix_start + segment.prefix_length)
        for offset in range(segment.length):
            own = range(segment.start, segment.start + offset + 1)
            seen_by[segment.start + offset] = [*prefix, *own]
    assert sorted(seen_by) == list(range(len(batch.tokens)))
    for member, place in zip(batch.members, batch.places, strict=True):
        sequence = sequences[member]
        assert batch.tokens[place].tolist() == sequence.tolist()
        assert batch.positions[place].tolist() == list(range(len(sequence)))
        for position, at in enumerate(place.tolist()):
            assert batch.tokens[seen_by[at]].tolist() == sequence[: position + 1].tolist()


@settings(max_examples=60)
@given(sequences=sequences_of, budget=st.integers(1, 120), share=st.booleans())
def test_every_sequence_lies_whole_in_one_row(sequences: list[np.ndarray], budget: int, share: bool) -> None:
    batches = pack(sequences, budget=budget, share=share)
    assert sorted(member for batch in batches for member in batch.members) == list(range(len(sequences)))
    for batch in batches:
        assert_whole(batch, sequences)
        assert len(batch.tokens) <= budget or len(batch.members) == 1


@settings(max_examples=30)
@given(sequences=sequences_of.filter(lambda found: len(found) > 1))
def test_a_row_can_be_split(sequences: list[np.ndarray]) -> None:
    [whole] = pack(sequences, budget=10_000)
    parts = split(whole, sequences)
    assert sorted(member for part in parts for member in part.members) == sorted(whole.members)
    for part in parts:
        assert_whole(part, sequences)


def test_the_samples_of_a_prompt_share_it() -> None:
    prompt = list(range(100))
    sequences = [np.array([*prompt, 200 + number, 5, 6], np.int64) for number in range(8)]
    [batch] = pack(sequences, budget=4096)
    assert len(batch.tokens) == 100 + 8 * 3
    [apart] = pack(sequences, budget=4096, share=False)
    assert len(apart.tokens) == 8 * 103


def test_a_family_that_is_too_large_is_divided_and_each_part_reads_the_prompt() -> None:
    sequences = [np.array([*range(50), *([100 + number] * 10)], np.int64) for number in range(6)]
    batches = pack(sequences, budget=70)
    assert [len(batch.tokens) for batch in batches] == [70, 70, 70]
