"""A training pass on a GPU as two captured graphs, forward and backward, to avoid the overhead of kernel launches.

Graphs have fixed shapes: rows and their lists of segments are padded to round sizes, with a separate sequence. A shape
is captured when it occurs for the second time. Small models gain most; large models are not captured.
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
"""Maximum of parameters times tokens; above, kernel launches are not the bottleneck."""
# Sizes are rounded up with these units, so that different rows share a graph.
ROUND_TOKENS = 512
_SEGMENTS = 32
_LENGTH = 1024
_KEYS = 8192
_SIGHTINGS = 2
"""Number of occurrences after which a shape is captured."""
_MOST_PASSES = 16
"""Maximum number of captured shapes; each holds a gradient."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fixed sizes of a graph."""

    tokens: int
    segments: int
    longest: int
    keys: int
    """Total number of keys if sequences share a prefix; otherwise 0."""

    @classmethod
    def of(cls, batch: MicroBatch) -> Shape:
        """Return the smallest shape that holds a row."""
        tokens = -(-len(batch.tokens) // ROUND_TOKENS) * ROUND_TOKENS
        filling = tokens - len(batch.tokens)
        longest = max(filling, *(segment.prefix_length + segment.length for segment in batch.segments))
        shared = sum(segment.prefix_length for segment in batch.segments)
        keys = -(-(tokens + shared) // _KEYS) * _KEYS if shared else 0
        return cls(tokens, _power_of_2(len(batch.segments) + 1, _SEGMENTS), _power_of_2(longest, _LENGTH), keys)


class TrainingGraphs:
    """The graphs of one adapter in training, or of a stack of adapters. The caller holds the base's turn."""

    def __init__(self, base: Base, parts: Mapping[str, Change], parameters: list[Tensor], adapters: int = 1) -> None:
        self._base, self._parts, self._parameters, self._adapters = base, parts, parameters, adapters
        self._size = sum(linear.weight.numel() for linear in base.switch.layers.values())
        self._counts: Counter[Shape] = Counter()
        self._passes: dict[Shape, Any] = {}
        self._pool: Any = None

    def find(self, batch: MicroBatch) -> Any:
        """Return the graph for a row, captured if needed; None if it is not worth capturing."""
        if gpu_layers(self._base) is None:
            return None
        shape = Shape.of(batch)
        if self._size * shape.tokens > _MOST_WORK:
            return None
        self._counts[shape] += 1
        if shape in self._passes:
            self._passes[shape] = self._passes.pop(shape)  # move to the end: most recently used
        elif self._counts[shape] >= _SIGHTINGS:
            self._drop_oldest()
            self._capture(shape, batch)
        return self._passes.get(shape)

    @property
    def held(self) -> bool:
        """Whether any graphs are captured."""
        return bool(self._passes)

    def forget(self) -> None:
        """Release all graphs and capture no more, after memory ran out."""
        self._passes.clear()
        # A size above `_MOST_WORK`, so that `find` captures nothing.
        self._pool, self._size = None, 1 << 60

    def _drop_oldest(self) -> None:
        """Make room for one graph; a dropped shape must occur `_SIGHTINGS` times again."""
        while len(self._passes) >= _MOST_PASSES:
            shape = next(iter(self._passes))
            del self._passes[shape], self._counts[shape]

    def _capture(self, shape: Shape, batch: MicroBatch) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._passes[shape] = self._make(shape, inputs_of(batch, shape))
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            self.forget()
            memory.release_unused()

    def _make(self, shape: Shape, inputs: Any) -> Any:
        return PassGraph(self._base, self._parts, self._parameters, self._adapters, shape, inputs, self._pool)


class PassGraph:
    """Captured forward and backward pass for rows of one shape."""

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
        with torch.cuda.stream(side):  # warm-up: compile and allocate before capturing
            torch.autograd.grad(self._run(base, parts), parameters, self._slope)
        torch.cuda.current_stream(base.device).wait_stream(side)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads, e.g. sampling, may use the device during the capture.
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"):
            hidden = self._run(base, parts)
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"):
            gradients = torch.autograd.grad(hidden, parameters, self._slope)
            self._gradient = torch.cat([gradient.reshape(adapters, -1) for gradient in gradients], dim=1)
        self._hidden = hidden.detach()

    def forward(self, batch: MicroBatch) -> Tensor:
        """Return the last hidden states of a row; the next call overwrites them."""
        for buffer, part in zip(self._inputs, inputs_of(batch, self._shape), strict=True):
            buffer.copy_(torch.from_numpy(part))
        self._forward.replay()
        return self._hidden[: len(batch.tokens)]

    def backward(self, places: Tensor, slope: Tensor) -> Tensor:
        """Return a gradient vector per adapter, from the gradients of hidden states at `places` of the last row."""
        self._slope.zero_()
        self._slope[places] = slope
        self._backward.replay()
        return self._gradient.to(torch.float32, copy=True)  # a copy, because the next replay overwrites it

    def _run(self, base: Base, parts: Mapping[str, Change]) -> Tensor:
        tokens, positions, *_ = self._inputs
        layers = gpu_layers(base)
        assert layers is not None
        index = index_of(self._inputs, self._shape)

        def attend(q: Tensor, k: Tensor, v: Tensor, traits: Traits) -> Tensor:
            return varlen_rows(q, k, v, index, traits)

        return run_body(base, layers, add_adapter(parts), tokens, positions, attend)


def index_of(inputs: Any, shape: Shape) -> VarlenIndex:
    """Return the index for attention of the tensors of `inputs_of`."""
    _, _, queries, *others = inputs
    # Without a shared prefix, the keys are the row itself.
    keys, gather, order, ends = others or (queries, None, None, None)
    return VarlenIndex(queries, keys, shape.longest, shape.longest, gather, order, ends)


def inputs_of(batch: MicroBatch, shape: Shape) -> list[Any]:
    """Return tokens, positions and sequence ends, padded to the shape, and with shared prefixes also the keys."""
    count = len(batch.tokens)
    tokens, positions = np.zeros(shape.tokens, np.int64), np.zeros(shape.tokens, np.int64)
    tokens[:count], positions[:count] = batch.tokens, batch.positions
    positions[count:] = np.arange(shape.tokens - count)
    segments = [*batch.segments, Segment(count, shape.tokens - count)]
    # The padding is a separate sequence, so that its gradient is zero.
    index = VarlenIndex.of(segments, shape.tokens)
    inputs = [tokens, positions, fill(index.queries, shape.segments + 1)]
    if shape.keys:
        # Entries behind the last key are neither read nor part of a gradient.
        assert index.gather is not None
        inputs += [fill(index.keys, shape.segments + 1), fill(index.gather, shape.keys, 0)]
        inputs += [fill(index.order, shape.keys, 0), index.ends]
    return [np.asarray(part) for part in inputs]


def fill(numbers: Any, count: int, filling: int | None = None) -> Any:
    """Pad numbers to `count`, with the last number or with `filling`."""
    padded = np.full(count, numbers[-1] if filling is None else filling, np.asarray(numbers).dtype)
    padded[: len(numbers)] = numbers
    return padded


def _power_of_2(count: int, least: int) -> int:
    return max(least, 1 << (count - 1).bit_length())
