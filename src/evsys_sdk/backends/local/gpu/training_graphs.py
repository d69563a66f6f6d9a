"""A training pass on a GPU as two captured graphs, forward and backward, for when launching kernels takes the longest.

Graphs have fixed shapes: a row is filled up to a round number of tokens with a sequence that no one looks at, and so
are the ends of its sequences. A shape is captured when it comes up again. Small models gain most; for large ones the
pass runs as it is.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import memory
from ..base.attention import Segment, Traits, VarlenIndex, varlen_rows
from ..base.loading import Base
from ..base.lora import Change
from ..base.packing import MicroBatch
from .fused_body import add_adapter, gpu_layers, run_body

_MOST_WORK = 1.2e13
"""Parameters times tokens; above, the GPU is busy anyway."""
# Rounded up to these, rows of different data share a shape: the fewer shapes, the more often one is captured already.
ROUND_TOKENS = 512
_SEGMENTS = 32
_LENGTH = 1024
_KEYS = 8192
_SIGHTINGS = 2
"""How often a shape has to come up before it is worth capturing."""
_MOST_PASSES = 16
"""How many shapes are kept; each holds a gradient."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is fixed to."""

    tokens: int
    segments: int
    longest: int
    keys: int
    """How many keys there are in all, where sequences share a prefix; 0 where none do."""

    @classmethod
    def of(cls, batch: MicroBatch) -> Shape:
        """The smallest shape that holds a row."""
        tokens = -(-len(batch.tokens) // ROUND_TOKENS) * ROUND_TOKENS
        filling = tokens - len(batch.tokens)
        longest = max(filling, *(segment.prefix_length + segment.length for segment in batch.segments))
        shared = sum(segment.prefix_length for segment in batch.segments)
        keys = -(-(tokens + shared) // _KEYS) * _KEYS if shared else 0
        return cls(tokens, _power_of_2(len(batch.segments) + 1, _SEGMENTS), _power_of_2(longest, _LENGTH), keys)


class TrainingGraphs:
    """The graphs of one adapter in training, or of a stack of several. The caller holds the base's turn."""

    def __init__(self, base: Base, parts: Mapping[str, Change], parameters: list[Tensor], adapters: int = 1) -> None:
        self._base, self._parts, self._parameters, self._adapters = base, parts, parameters, adapters
        self._size = sum(linear.weight.numel() for linear in base.switch.layers.values())
        self._seen: Counter[Shape] = Counter()
        self._passes: dict[Shape, PassGraph] = {}
        self._pool: Any = None

    def find(self, batch: MicroBatch) -> PassGraph | None:
        """The graph for a row; None where it is not worth one."""
        if gpu_layers(self._base) is None:
            return None
        shape = Shape.of(batch)
        if self._size * shape.tokens > _MOST_WORK:
            return None
        self._seen[shape] += 1
        if shape in self._passes:
            self._passes[shape] = self._passes.pop(shape)  # the one that was used last is the last
        elif self._seen[shape] >= _SIGHTINGS:
            self._drop_oldest()
            self._capture(shape, batch)
        return self._passes.get(shape)

    @property
    def held(self) -> bool:
        """Whether there are any."""
        return bool(self._passes)

    def forget(self) -> None:
        """Give the memory back, and capture nothing more: there is too little of it."""
        self._passes.clear()
        # So large that `find` takes no row to be worth capturing any more.
        self._pool, self._size = None, 1 << 60

    def _drop_oldest(self) -> None:
        """Make room for one more; what is dropped has to come up as often again."""
        while len(self._passes) >= _MOST_PASSES:
            shape = next(iter(self._passes))
            del self._passes[shape], self._seen[shape]

    def _capture(self, shape: Shape, batch: MicroBatch) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._passes[shape] = PassGraph(
                self._base, self._parts, self._parameters, self._adapters, shape, _inputs(batch, shape), self._pool
            )
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            self.forget()
            memory.release_unused()


class PassGraph:
    """Forward and backward of rows of one shape."""

    def __init__(
        self,
        base: Base,
        parts: Mapping[str, Change],
        parameters: list[Tensor],
        adapters: int,
        shape: Shape,
        inputs: Any,
        pool: Any,
    ) -> None:
        self._shape = shape
        self._inputs = [torch.from_numpy(part).to(base.device) for part in inputs]
        self._slope = torch.zeros(shape.tokens, base.hidden_size, dtype=base.key.dtype, device=base.device)
        side = torch.cuda.Stream(base.device)
        side.wait_stream(torch.cuda.current_stream(base.device))
        with torch.cuda.stream(side):  # compiles and allocates what capturing must not
            torch.autograd.grad(self._run(base, parts), parameters, self._slope)
        torch.cuda.current_stream(base.device).wait_stream(side)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads, those that sample above all, may use the device while this one captures.
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"):
            hidden = self._run(base, parts)
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"):
            found = torch.autograd.grad(hidden, parameters, self._slope)
            self._gradient = torch.cat([gradient.reshape(adapters, -1) for gradient in found], dim=1)
        self._hidden = hidden.detach()

    def forward(self, batch: MicroBatch) -> Tensor:
        """The last hidden states of a row, which the next row overwrites."""
        for held, part in zip(self._inputs, _inputs(batch, self._shape), strict=True):
            held.copy_(torch.from_numpy(part))
        self._forward.replay()
        return self._hidden[: len(batch.tokens)]

    def backward(self, places: Tensor, slope: Tensor) -> Tensor:
        """A vector of gradients for each adapter, given those of the hidden states at some places of the last row."""
        self._slope.zero_()
        self._slope[places] = slope
        self._backward.replay()
        return self._gradient.to(torch.float32, copy=True)  # the next row is replayed into the same place

    def _run(self, base: Base, parts: Mapping[str, Change]) -> Tensor:
        tokens, positions, queries, *others = self._inputs
        layers = gpu_layers(base)
        assert layers is not None
        # Without a shared prefix the keys are those of the row itself.
        keys, gather, order, ends = others or (queries, None, None, None)
        index = VarlenIndex(queries, keys, self._shape.longest, self._shape.longest, gather, order, ends)

        def attend(q: Tensor, k: Tensor, v: Tensor, traits: Traits) -> Tensor:
            return varlen_rows(q, k, v, index, traits)

        return run_body(base, layers, add_adapter(parts), tokens, positions, attend)


def _inputs(batch: MicroBatch, shape: Shape) -> list[Any]:
    """Tokens, positions and the ends of the sequences, filled up to the shape; and their keys, where these differ."""
    count = len(batch.tokens)
    tokens, positions = np.zeros(shape.tokens, np.int64), np.zeros(shape.tokens, np.int64)
    tokens[:count], positions[:count] = batch.tokens, batch.positions
    positions[count:] = np.arange(shape.tokens - count)
    segments = [*batch.segments, Segment(count, shape.tokens - count)]
    # The filling is its own sequence: no other one sees it, and its gradient is zero.
    index = VarlenIndex.of(segments, shape.tokens)
    found = [tokens, positions, _fill(index.queries, shape.segments + 1)]
    if shape.keys:
        # What lies behind the last key is no one's: neither read, nor part of any gradient.
        assert index.gather is not None
        found += [_fill(index.keys, shape.segments + 1), _fill(index.gather, shape.keys, 0)]
        found += [_fill(index.order, shape.keys, 0), index.ends]
    return [np.asarray(part) for part in found]


def _fill(numbers: Any, count: int, filling: int | None = None) -> Any:
    """As many numbers as wanted; further ones are like the last, or like the filling."""
    found = np.full(count, numbers[-1] if filling is None else filling, np.asarray(numbers).dtype)
    found[: len(numbers)] = numbers
    return found


def _power_of_2(count: int, least: int) -> int:
    return max(least, 1 << (count - 1).bit_length())
