"""Decoding with a KV cache: prefill prompts, then grow every running sequence by a token per step.

The cache is one tensor per layer with a slot for each running sequence, so a step is one batched attention. Slots have
no gaps: the owner of the decoder moves the last slot into a slot that becomes free.

    logits = decoder.prefill([prompt], [0])            # (1, vocabulary)
    logits = decoder.prefill([prompt], [0], [500])     # the same, where the slot holds the first 500 tokens already
    logits = decoder.step(tokens, positions)           # slot i reads tokens[i] at positions[i]

`TokenDecoder` is also the interface of the other decoders, e.g. with captured graphs on a GPU.
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
    """Keys and values of all layers, (slots, heads, length, width) each; allocated by the first prefill."""

    slots: int = 0
    length: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])
    states: dict[tuple[int, str], Tensor] = field(default_factory=dict[tuple[int, str], Tensor])
    """States of recurrent layers after the last token of each slot, by layer and kind."""

    def state(self, layer: int, kind: str, like: Tensor) -> Tensor:
        """Return the states of all slots, (slots, *like.shape); allocate them on the first call."""
        if (layer, kind) not in self.states:
            self.states[layer, kind] = like.new_zeros(self.slots, *like.shape)
        return self.states[layer, kind]

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of one slot."""
        return sum(state[0].numel() * state.element_size() for state in self.states.values() if len(state))

    @property
    def token_bytes(self) -> int:
        """Bytes of one position of a slot."""
        tensors = [tensor for pair in self.layers.values() for tensor in pair]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in tensors)

    def reserve(self, slots: int, length: int) -> None:
        """Reserve this many slots of this length, and keep their contents."""
        if slots <= self.slots and length <= self.length:
            return
        # Growth in one dimension reduces the other to what is needed. Otherwise few long texts would take as many slots
        # as many short texts before.
        new_slots = slots if slots <= self.slots else max(slots, self.slots * 2)
        new_length = length + _GROWTH if length <= self.length else max(length + _GROWTH, self.length * 5 // 4)
        grown = {
            number: (_grow(key, new_slots, new_length), _grow(value, new_slots, new_length))
            for number, (key, value) in self.layers.items()
        }
        states = {name: _grow_slots(state, new_slots) for name, state in self.states.items()}
        self.layers, self.states, self.slots, self.length = grown, states, new_slots, new_length

    def layer(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cache of a layer; allocate it from the shape of keys and values (heads, tokens, width)."""
        if number not in self.layers:
            self.layers[number] = (
                key.new_zeros(self.slots, key.shape[0], self.length, key.shape[2]),
                value.new_zeros(self.slots, value.shape[0], self.length, value.shape[2]),
            )
        return self.layers[number]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first positions and the recurrent states of a slot to other slots."""
        for pair in self.layers.values():
            for tensor in pair:
                for target in targets:
                    tensor[target, :, :length] = tensor[source, :, :length]
        for state in self.states.values():
            for target in targets:
                state[target] = state[source]

    def take(self, slot: int, start: int, end: int) -> Any:
        """Return a copy of some positions of a slot, for `put` and `cut`; its type depends on the cache."""
        layers = {
            number: (key[slot, :, start:end].clone(), value[slot, :, start:end].clone())
            for number, (key, value) in self.layers.items()
        }
        return SlotCopy(layers, {name: state[slot].clone() for name, state in self.states.items()})

    def put(self, slot: int, start: int, copied: Any, length: int) -> None:
        """Write the first `length` positions of a copy made by `take` into a slot."""
        for number, (key, value) in copied.layers.items():
            keys, values = self.layer(number, key, value)
            keys[slot, :, start : start + length] = key[:, :length]
            values[slot, :, start : start + length] = value[:, :length]
        for name, state in (copied.states or {}).items():
            self.state(*name, like=state)[slot] = state

    def cut(self, copied: Any, start: int, end: int) -> Any:
        """Return a copy of a part of `copied`; only a part that reaches its end has the recurrent states."""
        parts = {
            number: (key[:, start:end].clone(), value[:, start:end].clone())
            for number, (key, value) in copied.layers.items()
        }
        is_last = all(end >= key.shape[1] for key, _ in copied.layers.values())
        return SlotCopy(parts, copied.states if is_last or not copied.states else None)

    def clear(self) -> None:
        """Release the memory."""
        self.layers, self.states, self.slots, self.length = {}, {}, 0, 0


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Keys and values of some positions of a slot, and the recurrent states after the last position."""

    layers: dict[int, tuple[Tensor, Tensor]]
    states: dict[tuple[int, str], Tensor] | None
    """Empty if the model has no recurrent layers; None if the states are not those of the last position."""


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
    """Prefill and decoding steps with one frozen set of weights. The caller holds the base's turn."""

    most_owners = 1 << 30
    """Maximum number of snapshots that can be decoded at a time."""

    def __init__(self, base: Base, changes: Mapping[str, Change]) -> None:
        self.base, self._changes = base, changes
        # A subclass may replace `cache` by a shared one; `rest` clears only the decoder's own.
        self.cache = self._own_cache = KeyValueCache()
        self.tokens_read = 0
        """Number of prompt tokens computed so far."""

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], known: Sequence[int] | None = None
    ) -> Tensor:
        """Prefill prompts into slots; return the logits after the last token of each, (prompts, vocabulary).

        `known` is the number of first tokens that each slot already holds, at most all but one. What the remaining
        tokens of prompts have in common is computed once.
        """
        reading = Reading.of(prompts, slots, known or [0] * len(prompts), self._owners_of(slots))
        tokens, positions = torch.from_numpy(reading.tokens), torch.from_numpy(reading.positions)
        hidden = self._hidden(tokens, positions, PromptLayout(reading, self.cache))
        self.tokens_read += len(reading.tokens)
        return self.base.head.logits(hidden[torch.from_numpy(reading.ends).to(self.base.device)])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Decode one more token for each of the first slots; return the logits after it, (slots, vocabulary)."""
        at = torch.tensor(positions)
        layout = StepLayout(self.cache, at.to(self.base.device), longest=max(positions) + 1)
        return self._logits(self._hidden(torch.tensor(tokens), at, layout))

    def _owners_of(self, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the number of each slot's snapshot; None if there is only one snapshot."""

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Reserve the cache for the next token of these lanes."""
        self.cache.reserve(len(lanes), max(lane.position for lane in lanes) + 2)

    def grow(self, lanes: Sequence[Lane]) -> None:
        """Decode the last token of every lane, lane i in slot i, and choose its next token."""
        advance(lanes, self.step([lane.tokens[-1] for lane in lanes], [lane.position for lane in lanes]))

    def holds_more_than(self, lanes: Sequence[Lane]) -> bool:
        """Whether the cache has more slots than these lanes need."""
        return self.cache.slots > max(1, len(lanes))

    def rest(self) -> None:
        """Release the decoder's own cache while there is nothing to sample."""
        self._own_cache.clear()

    def release(self) -> None:
        """Release memory that outlives the decoder, after memory ran out."""

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.base.head.logits(hidden)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: PackedLayout | StepLayout) -> Tensor:
        with self.base.switch.using(self._changes):
            return self.base.hidden(tokens.to(self.base.device), positions.to(self.base.device), layout)


class StepLayout:
    """The layout of a decoding step: one token per slot, which attends to its slot."""

    def __init__(self, cache: KeyValueCache, positions: Tensor, *, longest: int) -> None:
        self._cache, self._positions, self._longest = cache, positions, longest
        self._slots = torch.arange(len(positions), device=positions.device)
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        output = self.attend_tokens(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), traits)
        return output.view(*query.shape[1::-1], -1).transpose(0, 1)

    def attend_tokens(self, query: Tensor, key: Tensor, value: Tensor, traits: Traits) -> Tensor:
        """Compute attention of (slots, heads, width); return (slots, heads * width)."""
        keys, values = self._cache.layer(traits.layer, key.transpose(0, 1), value.transpose(0, 1))
        keys[self._slots, :, self._positions] = key
        values[self._slots, :, self._positions] = value
        count = len(self._positions)
        keys, values = keys[:count, :, : self._longest], values[:count, :, : self._longest]
        # Query heads that share keys become rows of one query, so that keys are not copied.
        grouped = query.unflatten(1, (keys.shape[1], -1))
        output = masked_attention(grouped, keys, values, self._mask(traits.window), traits)
        return output.reshape(count, -1)

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve one more token per slot, continuing from the slot's last inputs."""
        inputs = self._cache.state(layer, "inputs", x.new_empty(weight.shape[-1] - 1, x.shape[1]))[: len(x)]
        output, last = recurrence.step_convolution(x, weight, bias, inputs)
        inputs.copy_(last)
        return output

    def delta_rule(self, layer: int, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """Apply the gated delta rule to one more token per slot."""
        memory = self._cache.states[layer, "memory"][: len(value)]
        output, last = recurrence.step_delta_rule(query, key, value, decay, beta, memory)
        memory.copy_(last)
        return output

    def _mask(self, window: int | None) -> Tensor:
        """Return the attention mask of each token over its slot, (slots, 1, 1, longest)."""
        if window not in self._masks:
            at, place = self._positions[:, None], torch.arange(self._longest, device=self._positions.device)[None]
            mask = place <= at if window is None else (place <= at) & (place > at - window)
            self._masks[window] = mask[:, None, None, :]
        return self._masks[window]
