"""Pack sequences into rows without padding, up to a token budget, with each shared prefix stored only once.

The samples of one prompt share a prefix, and so do conversations with the same instructions. A family of sequences with
a common prefix is laid out as the prefix followed by the rest of each member, which attends to the prefix and to
itself. The results are the same as for separate sequences, with less work.

    for batch in pack([datum.tokens for datum in data], budget=2048): ...
    batch.places[j]     # where the positions of sequence batch.members[j] lie in the row
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .attention import PackedLayout, Segment

type Ints = NDArray[np.int64]

_SHORTEST_PREFIX = 16
"""Shorter common prefixes are not shared."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One row of packed sequences, with the position of each sequence."""

    tokens: Ints
    positions: Ints
    segments: tuple[Segment, ...]
    members: tuple[int, ...]
    """Numbers of the sequences, in the order of `places`."""
    places: tuple[Ints, ...]

    def layout(self) -> PackedLayout:
        return PackedLayout(self.segments)


@dataclass(frozen=True, slots=True)
class _Family:
    """Sequences that share their first `prefix` tokens; 0 for a single sequence."""

    members: tuple[int, ...]
    prefix: int

    def size(self, lengths: Sequence[int]) -> int:
        return self.prefix + sum(lengths[member] - self.prefix for member in self.members)


def pack(sequences: Sequence[Ints], *, budget: int, share: bool = True) -> list[MicroBatch]:
    """Pack all sequences into rows of at most `budget` tokens; a longer sequence gets its own row."""
    lengths = [len(sequence) for sequence in sequences]
    # A prefix is shared only within a row, so a family is split only if it exceeds the budget.
    families = [part for family in _families(sequences, share) for part in _split_family(family, lengths, budget)]
    return [_row(sequences, families_of_row) for families_of_row in _bins(families, lengths, budget)]


def split(batch: MicroBatch, sequences: Sequence[Ints], *, share: bool = True) -> list[MicroBatch]:
    """Split a row of several sequences into two rows with half of the sequences each."""
    assert len(batch.members) > 1
    halfway = len(batch.members) // 2
    rows: list[MicroBatch] = []
    for members in (batch.members[:halfway], batch.members[halfway:]):
        chosen = [sequences[member] for member in members]
        [row] = pack(chosen, budget=sum(map(len, chosen)), share=share)
        chosen_members = tuple(members[member] for member in row.members)
        rows.append(MicroBatch(row.tokens, row.positions, row.segments, chosen_members, row.places))
    return rows


def _families(sequences: Sequence[Ints], share: bool) -> list[_Family]:
    if not share:
        return [_Family((number,), 0) for number in range(len(sequences))]
    # Big-endian bytes sort like the tokens, so that sequences with a common prefix become neighbours.
    order = sorted(range(len(sequences)), key=lambda number: sequences[number].astype(">i4").tobytes())
    families: list[_Family] = []
    members, prefix = [order[0]], 0
    for number in order[1:]:
        common = common_start(sequences[members[0]], sequences[number])
        shared = common if len(members) == 1 else min(prefix, common)
        # Accept a shorter prefix for one more member if this saves more tokens in total.
        if shared >= _SHORTEST_PREFIX and shared * len(members) > prefix * (len(members) - 1):
            members.append(number)
            prefix = shared
        else:
            families.append(_Family(tuple(members), prefix))
            members, prefix = [number], 0
    return [*families, _Family(tuple(members), prefix)]


def common_start(one: Ints, other: Ints) -> int:
    """Return the length of the common prefix of two token sequences."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def _split_family(family: _Family, lengths: Sequence[int], budget: int) -> list[_Family]:
    """Split a family into parts that each fit into a row."""
    parts: list[_Family] = []
    members: list[int] = []
    for member in family.members:
        if members and _Family((*members, member), family.prefix).size(lengths) > budget:
            parts.append(_part(members, family))
            members = []
        members.append(member)
    return [*parts, _part(members, family)]


def _part(members: Sequence[int], family: _Family) -> _Family:
    return _Family(tuple(members), family.prefix if len(members) > 1 else 0)


def _bins(families: Sequence[_Family], lengths: Sequence[int], budget: int) -> list[list[_Family]]:
    """Assign families to rows by first-fit decreasing bin packing."""
    rows: list[list[_Family]] = []
    room: list[int] = []
    for family in sorted(families, key=lambda family: -family.size(lengths)):
        size = family.size(lengths)
        place = next((number for number, left in enumerate(room) if size <= left), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(family)
        room[place] -= size
    return rows


def _row(sequences: Sequence[Ints], families: Sequence[_Family]) -> MicroBatch:
    tokens: list[Ints] = []
    positions: list[Ints] = []
    segments: list[Segment] = []
    members: list[int] = []
    places: list[Ints] = []
    end = 0

    def add(part: Ints, first_position: int, prefix_start: int, prefix_length: int) -> Ints:
        nonlocal end
        places_of_part = np.arange(end, end + len(part))
        if len(part):
            tokens.append(part)
            positions.append(np.arange(first_position, first_position + len(part)))
            segments.append(Segment(end, len(part), prefix_start, prefix_length))
            end += len(part)
        return places_of_part

    for family in families:
        prefix = add(sequences[family.members[0]][: family.prefix], 0, 0, 0)
        start = int(prefix[0]) if len(prefix) else 0
        for member in family.members:
            rest = add(sequences[member][family.prefix :], family.prefix, start, family.prefix)
            members.append(member)
            places.append(np.concatenate([prefix, rest]))
    return MicroBatch(np.concatenate(tokens), np.concatenate(positions), tuple(segments), tuple(members), tuple(places))
