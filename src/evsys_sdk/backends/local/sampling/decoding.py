"""Decoding: prompts are read into a cache of keys and values, then every running sequence grows by a token per step.

The cache has a slot for each running sequence and is one tensor per layer, so a step is one batched attention over all
of them. Slots are kept without gaps: whoever owns the decoder moves the last slot into one that became free.

    logits = decoder.prefill([prompt], [0])            # (1, vocabulary)
    logits = decoder.prefill([prompt], [0], [500])     # the same, where the slot holds the first 500 tokens already
    logits = decoder.step(tokens, positions)           # slot i reads tokens[i] at positions[i]

`Decoder` is the whole interface; another one, e.g. with captured graphs of a GPU, can take its place.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.attention import PackedLayout, Traits, masked_attention
from ..base.loading import Base
from ..base.lora import Change
from .lanes import Lane, advance
from .reading import PromptLayout, Reading

_GROWTH = 64
"""The cache grows by at least this many positions at a time."""


@dataclass(slots=True)
class KeyValueCache:
    """Keys and values of all layers, (slots, heads, length, width) each; made when the first prompt is read."""

    slots: int = 0
    length: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])

    @property
    def token_bytes(self) -> int:
        """What one position of a slot takes."""
        tensors = [tensor for pair in self.layers.values() for tensor in pair]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in tensors)

    def reserve(self, slots: int, length: int) -> None:
        """Make room for this many slots of this length, keeping what is there."""
        if slots <= self.slots and length <= self.length:
            return
        # What grows in one direction goes back to what is needed in the other, or few long texts would come to lie in
        # as many slots as there once were short ones.
        new_slots = slots if slots <= self.slots else max(slots, self.slots * 2)
        new_length = length + _GROWTH if length <= self.length else max(length + _GROWTH, self.length * 5 // 4)
        grown = {
            number: (_grow(key, new_slots, new_length), _grow(value, new_slots, new_length))
            for number, (key, value) in self.layers.items()
        }
        self.layers, self.slots, self.length = grown, new_slots, new_length

    def layer(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The cache of a layer, in the shape of its keys and values (heads, tokens, width)."""
        if number not in self.layers:
            self.layers[number] = (
                key.new_zeros(self.slots, key.shape[0], self.length, key.shape[2]),
                value.new_zeros(self.slots, value.shape[0], self.length, value.shape[2]),
            )
        return self.layers[number]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give other slots the first positions of one."""
        for pair in self.layers.values():
            for tensor in pair:
                for target in targets:
                    tensor[target, :, :length] = tensor[source, :, :length]

    def take(self, slot: int, start: int, end: int) -> Any:
        """A copy of some positions of a slot, for `put` and `cut`; each kind of cache has its own form of it."""
        return {
            number: (key[slot, :, start:end].clone(), value[slot, :, start:end].clone())
            for number, (key, value) in self.layers.items()
        }

    def put(self, slot: int, start: int, taken: Any, length: int) -> None:
        """Fill positions of a slot with the first ones of what was taken from one, this one or another."""
        for number, (key, value) in taken.items():
            keys, values = self.layer(number, key, value)
            keys[slot, :, start : start + length] = key[:, :length]
            values[slot, :, start : start + length] = value[:, :length]

    def cut(self, taken: Any, start: int, end: int) -> Any:
        """A copy of a part of what was taken."""
        return {
            number: (key[:, start:end].clone(), value[:, start:end].clone()) for number, (key, value) in taken.items()
        }

    def clear(self) -> None:
        """Give the memory back."""
        self.layers, self.slots, self.length = {}, 0, 0


def _grow(tensor: Tensor, slots: int, length: int) -> Tensor:
    grown = tensor.new_zeros(slots, tensor.shape[1], length, tensor.shape[3])
    slots, length = min(slots, tensor.shape[0]), min(length, tensor.shape[2])
    grown[:slots, :, :length] = tensor[:slots, :, :length]
    return grown


class Decoder:
    """Reads prompts and makes steps with one frozen set of weights. Its owner holds the base's turn."""

    def __init__(self, base: Base, changes: Mapping[str, Change]) -> None:
        self.base, self._changes = base, changes
        # A decoder may be given another cache, which outlives it; only its own is cleared when it rests.
        self.cache = self._own_cache = KeyValueCache()
        self.tokens_read = 0
        """Of prompts, so far."""

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], known: Sequence[int] | None = None
    ) -> Tensor:
        """Read prompts into slots; the logits after the last token of each, (prompts, vocabulary).

        `known` says how many of its first tokens each slot holds already, at most all but one. What prompts have in
        common behind that is read once.
        """
        reading = Reading.of(prompts, slots, known or [0] * len(prompts))
        tokens, positions = torch.from_numpy(reading.tokens), torch.from_numpy(reading.positions)
        hidden = self._hidden(tokens, positions, PromptLayout(reading, self.cache))
        self.tokens_read += len(reading.tokens)
        return self.base.head.logits(hidden[torch.from_numpy(reading.ends).to(self.base.device)])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """One more token for each of the first slots; the logits after it, (slots, vocabulary)."""
        at = torch.tensor(positions)
        layout = StepLayout(self.cache, at.to(self.base.device), longest=max(positions) + 1)
        return self._logits(self._hidden(torch.tensor(tokens), at, layout))

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Make room in the cache for the next token of these."""
        self.cache.reserve(len(lanes), max(lane.position for lane in lanes) + 2)

    def grow(self, lanes: Sequence[Lane]) -> None:
        """Read the last token of every lane, lane i in slot i, and choose its next one."""
        advance(lanes, self.step([lane.tokens[-1] for lane in lanes], [lane.position for lane in lanes]))

    def holds_more_than(self, lanes: Sequence[Lane]) -> bool:
        """Whether a new cache for these would be smaller."""
        return self.cache.slots > max(1, len(lanes))

    def rest(self) -> None:
        """Give back the cache while there is nothing to sample; one that is tied to more than this decoder stays."""
        self._own_cache.clear()

    def release(self) -> None:
        """Let go of memory that outlives the decoder; there was too little of it."""

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.base.head.logits(hidden)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: PackedLayout | StepLayout) -> Tensor:
        with self.base.switch.using(self._changes):
            return self.base.hidden(tokens.to(self.base.device), positions.to(self.base.device), layout)


class StepLayout:
    """One token of each slot, which sees everything that is in the slot."""

    def __init__(self, cache: KeyValueCache, positions: Tensor, *, longest: int) -> None:
        self._cache, self._positions, self._longest = cache, positions, longest
        self._slots = torch.arange(len(positions), device=positions.device)
        self._seen: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        keys, values = self._cache.layer(traits.layer, key, value)
        keys[self._slots, :, self._positions] = key.transpose(0, 1)
        values[self._slots, :, self._positions] = value.transpose(0, 1)
        count = len(self._positions)
        keys, values = keys[:count, :, : self._longest], values[:count, :, : self._longest]
        # Query heads that share keys become the rows of one query, so that no key is copied.
        heads, groups = keys.shape[1], query.shape[0] // keys.shape[1]
        grouped = query.transpose(0, 1).reshape(count, heads, groups, -1)
        found = masked_attention(grouped, keys, values, self._mask(traits.window), traits)
        return found.reshape(count, heads * groups, -1).transpose(0, 1)

    def _mask(self, window: int | None) -> Tensor:
        """Which positions of its slot each token sees, (slots, 1, 1, longest)."""
        if window not in self._seen:
            at, place = self._positions[:, None], torch.arange(self._longest, device=self._positions.device)[None]
            seen = place <= at if window is None else (place <= at) & (place > at - window)
            self._seen[window] = seen[:, None, None, :]
        return self._seen[window]
