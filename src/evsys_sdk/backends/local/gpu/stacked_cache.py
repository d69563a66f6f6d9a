"""The KV cache of graph decoders: one tensor, so that a few operations copy a slot of all layers."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..base.fused_layers import Layer
from ..sampling.decoding import KeyValueCache

_GROWTH = 128
_KEPT_POSITIONS = 1 << 18
"""A cache that would exceed this is reduced to what is needed. Smaller caches never shrink, because their graphs would
have to be captured again."""


class StackedCache(KeyValueCache):
    """A KV cache in one tensor, (layers, 2, slots, heads, length, width)."""

    def __init__(self, like: Sequence[Layer], weight: Tensor) -> None:
        super().__init__()
        self._shape = (len(like), like[0].sizes[1], like[0].attention.head_dim)
        self._whole = weight.new_empty(0)
        self.moves = 0
        """Number of reallocations."""

    def reserve(self, slots: int, length: int) -> None:
        """Reserve this many slots of this length, and keep their contents."""
        if slots <= self.slots and length <= self.length:
            return
        layers, heads, width = self._shape
        least_length = -(-length // _GROWTH) * _GROWTH
        new_slots, new_length = max(slots, self.slots), max(least_length, self.length)
        # Neither dimension shrinks below this limit; without it, many short texts and one long text would reserve
        # as many slots of the full length.
        if new_slots * new_length > _KEPT_POSITIONS:
            new_slots, new_length = slots, least_length
        whole = self._whole.new_zeros(layers, 2, new_slots, heads, new_length, width)
        if self.slots:
            old_slots, old_length = min(self.slots, new_slots), min(self.length, new_length)
            whole[:, :, :old_slots, :, :old_length] = self._whole[:, :, :old_slots, :, :old_length]
        self._whole, self.slots, self.length = whole, new_slots, new_length
        self.layers = {number: (whole[number, 0], whole[number, 1]) for number in range(layers)}
        self.moves += 1

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first positions of a slot to other slots."""
        for start, end in _stretches(targets):
            self._whole[:, :, start:end, :, :length] = self._whole[:, :, source : source + 1, :, :length]

    def take(self, slot: int, start: int, end: int) -> Any:
        """Return a copy of some positions of a slot."""
        return self._whole[:, :, slot, :, start:end].clone()

    def put(self, slot: int, start: int, copied: Any, length: int) -> None:
        """Write the first `length` positions of a copy made by `take` into a slot."""
        self._whole[:, :, slot, :, start : start + length] = copied[..., :length, :]

    def cut(self, copied: Any, start: int, end: int) -> Any:
        """Return a copy of a part of `copied`."""
        return copied[..., start:end, :].clone()

    def clear(self) -> None:
        """Release the memory."""
        self._whole, self.layers = self._whole.new_empty(0), {}
        self.slots = self.length = 0
        self.moves += 1


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Group numbers into ranges (start, end) of consecutive numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges
