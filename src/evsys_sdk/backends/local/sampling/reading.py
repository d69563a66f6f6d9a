"""Reading prompts: how they are laid out in one row, and where their keys and values go and come from.

Of a prompt whose beginning is in its slot already only the rest is read. Rests with a common beginning behind the same
known tokens are a family as in training: what they share is in the row once, and goes to the slots of all of them.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..base import packing
from ..base.attention import PackedLayout, Segment, Traits, has_triton, masked_attention

if TYPE_CHECKING:
    from .decoding import KeyValueCache


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Where a segment's keys lie once they are stored: in the first positions of a slot."""

    slot: int
    end: int


@dataclass(frozen=True, slots=True)
class _Store:
    """What of the row goes to a slot."""

    slot: int
    first: int
    """The position of the first of them."""
    places: packing.Ints


@dataclass(frozen=True, slots=True)
class Reading:
    """One row with all that is to be read of some prompts."""

    tokens: packing.Ints
    positions: packing.Ints
    segments: tuple[Segment, ...]
    stretches: tuple[_Stretch, ...]
    """Of each segment."""
    stores: tuple[_Store, ...]
    """Of each prompt."""
    ends: packing.Ints
    """Where the last token of each prompt lies."""
    owned: tuple[tuple[int, slice], ...]
    """Numbers of snapshots in ascending order, and the rows that each is to read."""

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        slots: Sequence[int],
        known: Sequence[int],
        owners: Sequence[int] | None = None,
    ) -> Reading:
        families: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        of = owners or [0] * len(prompts)
        for number in sorted(range(len(prompts)), key=lambda number: of[number]):
            # Only behind the same known tokens can rests share what
            # they begin with: attention saw other things elsewhere.
            families.setdefault((of[number], tuple(prompts[number][: known[number]])), []).append(number)
        rows: list[packing.MicroBatch] = []
        segments: list[Segment] = []
        stretches: list[_Stretch] = []
        stores: dict[int, _Store] = {}
        owned: dict[int, slice] = {}
        start = 0
        for (owner, beginning), numbers in families.items():
            before = len(beginning)
            rests = [np.array(prompts[number][before:], np.int64) for number in numbers]
            [row] = packing.pack(rests, budget=sum(map(len, rests)))
            slot_of = np.empty(len(row.tokens), np.int64)
            for member, places in zip(row.members, row.places, strict=True):
                number = numbers[member]
                stores[number] = _Store(slots[number], before, places + start)
                # Of a shared beginning any member's slot will do, for all of them hold it.
                slot_of[places] = slots[number]
            for s in row.segments:
                segments.append(Segment(s.start + start, s.length, s.prefix_start + start, s.prefix_length))
                stretches.append(_Stretch(int(slot_of[s.start]), before + s.prefix_length + s.length))
            rows.append(row)
            first = owned[owner].start if owner in owned else start
            start += len(row.tokens)
            owned[owner] = slice(first, start)
        in_order = tuple(stores[number] for number in range(len(prompts)))
        positions = [row.positions + len(beginning) for row, (_, beginning) in zip(rows, families, strict=True)]
        return cls(
            np.concatenate([row.tokens for row in rows]),
            np.concatenate(positions),
            tuple(segments),
            tuple(stretches),
            in_order,
            np.array([store.places[-1] for store in in_order]),
            tuple(owned.items()),
        )

    @property
    def knows(self) -> bool:
        """Whether some of the prompts' tokens are in the slots already."""
        return any(store.first for store in self.stores)


class PromptLayout(PackedLayout):
    """A packed row whose keys and values are kept, and which sees what slots held before."""

    def __init__(self, reading: Reading, cache: KeyValueCache) -> None:
        super().__init__(reading.segments)
        self.reading = self._reading = reading
        self._cache = cache
        self._stretches = dict(zip(reading.segments, reading.stretches, strict=True))
        self._stored: tuple[Tensor, ...] | None = None
        self._seen: tuple[PackedLayout, Tensor, Tensor] | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        keys, values = self._cache.layer(traits.layer, key, value)
        for store in self._reading.stores:
            for kept, row in ((keys, key), (values, value)):
                kept[store.slot, :, store.first : store.first + len(store.places)] = _columns(row, store.places)
        return super().attend(query, key, value, traits)

    def _attend_segment(self, segment: Segment, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        stretch = self._stretches[segment]
        if stretch.end == segment.prefix_length + segment.length:
            return super()._attend_segment(segment, query, key, value, traits)
        keys, values = self._cache.layers[traits.layer]
        q = query[:, segment.start : segment.start + segment.length]
        k, v = keys[stretch.slot, :, : stretch.end], values[stretch.slot, :, : stretch.end]
        seen = self._mask(segment.length, stretch.end, traits.window, q.device)
        return masked_attention(q[None], k[None], v[None], seen, traits)[0]

    def _initial_state(self, layer: int, kind: str) -> Tensor | None:
        """Slots that hold the beginning of a text hold the states after it too."""
        if not self._reading.knows:
            return None
        states = self._cache.states[layer, kind]
        found = states[[stretch.slot for stretch in self._reading.stretches]]
        for number, (segment, stretch) in enumerate(self._stretches.items()):
            if stretch.end == segment.prefix_length + segment.length:
                found[number] = 0
        return found

    def _keep_state(self, layer: int, kind: str, last: Tensor) -> None:
        states = self._cache.state(layer, kind, last[0])
        ends = {segment.start + segment.length - 1: number for number, segment in enumerate(self.segments)}
        for store in self._reading.stores:
            states[store.slot] = last[ends[int(store.places[-1])]]

    def attend_rows(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        keys, values = self._cache.layers[traits.layer]
        if self._stored is None:
            self._stored = _index_of(self._reading.stores, key.device)
        slot, position, place = self._stored
        if has_triton():
            from ..gpu.row_kernels import store_rows

            store_rows(key, value, (keys, values), slot, position, place)
        else:
            keys[slot, :, position] = key[place]
            values[slot, :, position] = value[place]
        if not self._reading.knows:
            return super().attend_rows(query, key, value, traits)
        if self._seen is None:
            self._seen = self._lay_out_known(len(key), key.device)
        layout, slot, position = self._seen
        key = torch.cat([key, keys[slot, :, position]])
        value = torch.cat([value, values[slot, :, position]])
        return layout.attend_rows(query, key, value, traits)

    def _lay_out_known(self, end: int, device: torch.device) -> tuple[PackedLayout, Tensor, Tensor]:
        """A layout for a row behind which lies what each segment sees of its slot, and where that comes from."""
        segments: list[Segment] = []
        slots: list[Tensor] = []
        positions: list[Tensor] = []
        for segment, stretch in self._stretches.items():
            before = stretch.end - segment.length
            segments.append(Segment(segment.start, segment.length, end, before))
            slots.append(torch.full((before,), stretch.slot))
            positions.append(torch.arange(before))
            end += before
        return PackedLayout(segments), torch.cat(slots).to(device), torch.cat(positions).to(device)


def _columns(row: Tensor, places: packing.Ints) -> Tensor:
    """(heads, tokens, width) -> those of some places; without a copy where they lie next to each other."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return row[:, first : last + 1]
    return row[:, torch.from_numpy(places).to(row.device)]


def _index_of(stores: Sequence[_Store], device: torch.device) -> tuple[Tensor, ...]:
    """Slot, position and place in the row of everything that is to be stored, in the order of the row."""
    slots = np.concatenate([np.full(len(store.places), store.slot) for store in stores])
    positions = np.concatenate([store.first + np.arange(len(store.places)) for store in stores])
    places = np.concatenate([store.places for store in stores])
    order = np.argsort(places, kind="stable")
    return tuple(torch.from_numpy(part[order]).to(device) for part in (slots, positions, places))
