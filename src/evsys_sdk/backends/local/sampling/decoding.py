"""Decoding: prompts are read into a cache of keys and values, then every running sequence grows by a token per step.

The cache has a slot for each running sequence and is one tensor per layer, so a step is one batched attention over all
of them. Slots are kept without gaps: the owner of the decoder moves the last slot into one that became free.

    logits = decoder.prefill([prompt], [0])            # (1, vocabulary)
    logits = decoder.prefill([prompt], [0], [500])     # the same, where the slot holds the first 500 tokens already
    logits = decoder.step(tokens, positions)           # slot i reads tokens[i] at positions[i]

`TokenDecoder` is the whole interface; another one, e.g. with captured graphs of a GPU, can take its place.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base import recurrence
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
    states: dict[tuple[int, str], Tensor] = field(default_factory=dict[tuple[int, str], Tensor])
    """Of recurrent layers, by layer and kind: the state after the last token of each slot."""

    def state(self, layer: int, kind: str, like: Tensor) -> Tensor:
        """The states of all slots in the shape of one."""
        if (layer, kind) not in self.states:
            self.states[layer, kind] = like.new_zeros(self.slots, *like.shape)
        return self.states[layer, kind]

    @property
    def state_bytes(self) -> int:
        """What the states of one slot take."""
        return sum(state[0].numel() * state.element_size() for state in self.states.values() if len(state))

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
        states = {name: _grow_slots(state, new_slots) for name, state in self.states.items()}
        self.layers, self.states, self.slots, self.length = grown, states, new_slots, new_length

    def layer(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The cache of a layer, in the shape of its keys and values (heads, tokens, width)."""
        if number not in self.layers:
            self.layers[number] = (
                key.new_zeros(self.slots, key.shape[0], self.length, key.shape[2]),
                value.new_zeros(self.slots, value.shape[0], self.length, value.shape[2]),
            )
        return self.layers[number]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give other slots the first positions of one, and its states, which are those after its last position."""
        for pair in self.layers.values():
            for tensor in pair:
                for target in targets:
                    tensor[target, :, :length] = tensor[source, :, :length]
        for state in self.states.values():
            for target in targets:
                state[target] = state[source]

    def take(self, slot: int, start: int, end: int) -> Any:
        """A copy of some positions of a slot, for `put` and `cut`; each kind of cache has its own form of it."""
        taken = {
            number: (key[slot, :, start:end].clone(), value[slot, :, start:end].clone())
            for number, (key, value) in self.layers.items()
        }
        return Taken(taken, {name: state[slot].clone() for name, state in self.states.items()})

    def put(self, slot: int, start: int, taken: Any, length: int) -> None:
        """Fill positions of a slot with the first ones of what was taken from one, this one or another."""
        for number, (key, value) in taken.layers.items():
            keys, values = self.layer(number, key, value)
            keys[slot, :, start : start + length] = key[:, :length]
            values[slot, :, start : start + length] = value[:, :length]
        for name, state in (taken.states or {}).items():
            self.state(*name, like=state)[slot] = state

    def cut(self, taken: Any, start: int, end: int) -> Any:
        """A copy of a part of what was taken; only the last part has the states, which are those of its end."""
        parts = {
            number: (key[:, start:end].clone(), value[:, start:end].clone())
            for number, (key, value) in taken.layers.items()
        }
        is_last = all(end >= key.shape[1] for key, _ in taken.layers.values())
        return Taken(parts, taken.states if is_last or not taken.states else None)

    def clear(self) -> None:
        """Give the memory back."""
        self.layers, self.states, self.slots, self.length = {}, {}, 0, 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Keys and values of some positions of a slot, and the states of recurrent layers after the last of them."""

    layers: dict[int, tuple[Tensor, Tensor]]
    states: dict[tuple[int, str], Tensor] | None
    """Empty where a model has none, None where the positions end before the states do."""


def _grow_slots(state: Tensor, slots: int) -> Tensor:
    grown = state.new_zeros(slots, *state.shape[1:])
    count = min(slots, len(state))
    grown[:count] = state[:count]
    return grown


def _grow(tensor: Tensor, slots: int, length: int) -> Tensor:
    grown = tensor.new_zeros(slots, tensor.shape[1], length, tensor.shape[3])
    slots, length = min(slots, tensor.shape[0]), min(length, tensor.shape[2])
    grown[:slots, :, :length] = tensor[:slots, :, :length]
    return grown


class TokenDecoder:
    """Reads prompts and makes steps with one frozen set of weights. Its owner holds the base's turn."""

    most_owners = 1 << 30
    """Snapshots whose samples it can decode at a time."""

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
        reading = Reading.of(prompts, slots, known or [0] * len(prompts), self._owners_of(slots))
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

    def _owners_of(self, slots: Sequence[int]) -> Sequence[int] | None:
        """For each slot, a number of the snapshot that it is read with; None where there is only one."""

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
        """Release memory that outlives the decoder; there was too little of it."""

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
        found = self.attend_tokens(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), traits)
        return found.view(*query.shape[1::-1], -1).transpose(0, 1)

    def attend_tokens(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        """The same for (slots, heads, width); the heads of each slot next to each other, (slots, heads * width)."""
        keys, values = self._cache.layer(traits.layer, key.transpose(0, 1), value.transpose(0, 1))
        keys[self._slots, :, self._positions] = key
        values[self._slots, :, self._positions] = value
        count = len(self._positions)
        keys, values = keys[:count, :, : self._longest], values[:count, :, : self._longest]
        # Query heads that share keys become the rows of one query, so that no key is copied.
        grouped = query.unflatten(1, (keys.shape[1], -1))
        found = masked_attention(grouped, keys, values, self._mask(traits.window), traits)
        return found.reshape(count, -1)

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A convolution that continues from each slot's last inputs."""
        inputs = self._cache.state(layer, "inputs", x.new_empty(weight.shape[-1] - 1, x.shape[1]))[: len(x)]
        found, last = recurrence.step_convolution(x, weight, bias, inputs)
        inputs.copy_(last)
        return found

    def delta_rule(self, layer: int, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """One more token of the gated delta rule for each slot."""
        memory = self._cache.states[layer, "memory"][: len(value)]
        found, last = recurrence.step_delta_rule(query, key, value, decay, beta, memory)
        memory.copy_(last)
        return found

    def _mask(self, window: int | None) -> Tensor:
        """Which positions of its slot each token sees, (slots, 1, 1, longest)."""
        if window not in self._seen:
            at, place = self._positions[:, None], torch.arange(self._longest, device=self._positions.device)[None]
            seen = place <= at if window is None else (place <= at) & (place > at - window)
            self._seen[window] = seen[:, None, None, :]
        return self._seen[window]
