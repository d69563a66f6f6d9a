"""Prefill: the layout of prompts in one row, and the slots that their keys and values go to and come from.

If a slot already holds a prefix of its prompt, only the rest is computed. Rests that follow the same known tokens and
share a prefix form a family as in training: the shared part is in the row once and is stored in all their slots.
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
    """The cached keys of a segment: the first `end` positions of a slot."""

    slot: int
    end: int


@dataclass(frozen=True, slots=True)
class _Store:
    """The part of the row to store in a slot."""

    slot: int
    first: int
    """Position in the slot of the first token."""
    places: packing.Ints
    """Indices into the row."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One row with the tokens to compute of some prompts."""

    tokens: packing.Ints
    positions: packing.Ints
    segments: tuple[Segment, ...]
    stretches: tuple[_Stretch, ...]
    """One per segment."""
    stores: tuple[_Store, ...]
    """One per prompt."""
    ends: packing.Ints
    """Index in the row of the last token of each prompt."""
    owned: tuple[tuple[int, slice], ...]
    """Numbers of snapshots in ascending order, each with its part of the row."""

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
            # Rests can share a prefix only if they follow the same known tokens.
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
                # For a shared prefix any member's slot works, because all of them hold it.
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
    def has_known_tokens(self) -> bool:
        """Whether some of the prompts' tokens are already in the slots."""
        return any(store.first for store in self.stores)


class PromptLayout(PackedLayout):
    """A packed row that stores its keys and values in the cache and attends to the slots' earlier contents."""

    def __init__(self, reading: Reading, cache: KeyValueCache) -> None:
        super().__init__(reading.segments)
        self.reading = self._reading = reading
        self._cache = cache
        self._stretches = dict(zip(reading.segments, reading.stretches, strict=True))
        self._stored: tuple[Tensor, ...] | None = None
        self._known_layout: tuple[PackedLayout, Tensor, Tensor] | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        keys, values = self._cache.layer(traits.layer, key, value)
        for store in self._reading.stores:
            for cached, row in ((keys, key), (values, value)):
                cached[store.slot, :, store.first : store.first + len(store.places)] = _columns(row, store.places)
        return super().attend(query, key, value, traits)

    def _attend_segment(self, segment: Segment, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        stretch = self._stretches[segment]
        if stretch.end == segment.prefix_length + segment.length:
            return super()._attend_segment(segment, query, key, value, traits)
        keys, values = self._cache.layers[traits.layer]
        q = query[:, segment.start : segment.start + segment.length]
        k, v = keys[stretch.slot, :, : stretch.end], values[stretch.slot, :, : stretch.end]
        visible = self._mask(segment.length, stretch.end, traits.window, q.device)
        return masked_attention(q[None], k[None], v[None], visible, traits)[0]

    def _initial_state(self, layer: int, kind: str) -> Tensor | None:
        """Return the states of slots that hold a known prefix, zero for the others; None if no prefix is known."""
        if not self._reading.has_known_tokens:
            return None
        states = self._cache.states[layer, kind]
        initial = states[[stretch.slot for stretch in self._reading.stretches]]
        for number, (segment, stretch) in enumerate(self._stretches.items()):
            if stretch.end == segment.prefix_length + segment.length:
                initial[number] = 0
        return initial

    def _keep_state(self, layer: int, kind: str, last: Tensor) -> None:
        states = self._cache.state(layer, kind, last[0])
        ends = {segment.start + segment.length - 1: number for number, segment in enumerate(self.segments)}
        for store in self._reading.stores:
            states[store.slot] = last[ends[int(store.places[-1])]]

    def attend_rows(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        keys, values = self._cache.layers[traits.layer]
        if self._stored is None:
            self._stored = tuple(torch.from_numpy(part).to(key.device) for part in places_of(self._reading.stores))
        slot, position, place = self._stored
        if has_triton():
            from ..gpu.row_kernels import store_rows

            store_rows(key, value, (keys, values), slot, position, place)
        else:
            keys[slot, :, position] = key[place]
            values[slot, :, position] = value[place]
        if not self._reading.has_known_tokens:
            return super().attend_rows(query, key, value, traits)
        if self._known_layout is None:
            self._known_layout = self._lay_out_known(len(key), key.device)
        layout, slot, position = self._known_layout
        key = torch.cat([key, keys[slot, :, position]])
        value = torch.cat([value, values[slot, :, position]])
        return layout.attend_rows(query, key, value, traits)

    def _lay_out_known(self, end: int, device: torch.device) -> tuple[PackedLayout, Tensor, Tensor]:
        """Return a layout for the row with the slots' visible keys appended, and their slots and positions."""
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
    """Select tokens of (heads, tokens, width); a view if they are consecutive."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return row[:, first : last + 1]
    return row[:, torch.from_numpy(places).to(row.device)]


def places_of(stores: Sequence[_Store]) -> tuple[packing.Ints, packing.Ints, packing.Ints]:
    """Return slot, position and row index of everything to store, in row order."""
    slots = np.concatenate([np.full(len(store.places), store.slot) for store in stores])
    positions = np.concatenate([store.first + np.arange(len(store.places)) for store in stores])
    places = np.concatenate([store.places for store in stores])
    order = np.argsort(places, kind="stable")
    return slots[order], positions[order], places[order]
