"""Decoding on a GPU: a step of all running samples, and the choice of their next tokens, is one captured graph.

A graph is tied to the places in memory that it was captured with. So weights, cache and graphs form a `Space` that
outlives a snapshot: the next snapshot of the same shape is merged into the same place and uses the same graphs. A graph
serves a number of slots; slots without a sample read a token that nobody looks at.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import bisect
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import memory
from .attention import Traits
from .decoding import Decoder, KeyValueCache
from .fused_body import gpu_layers, plain, run_body
from .fused_layers import Layer
from .loading import Base
from .lora import Adapter
from .products import Product
from .sampling import Lane, is_truncated, pick, uniforms
from .snapshot import Snapshot

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Slots that graphs are captured for; beyond the last, its multiples."""
_SPARE_SPACES = 2
_GROWTH = 128


def graph_decoder(base: Base, snapshot: Snapshot) -> GraphDecoder | None:
    """A decoder with captured graphs; None where the plain ones have to do."""
    layers = gpu_layers(base)
    if layers is None or (snapshot.adapter is not None and not snapshot.merges):
        return None
    if not isinstance(snapshot.prepared, Lease):
        try:
            snapshot.prepared = _lease(base, layers, snapshot.adapter)
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            memory.release_unused()
            return None
    return GraphDecoder(base, snapshot.prepared)


class StackedCache(KeyValueCache):
    """The cache as one tensor, (layers, 2, slots, heads, length, width), of which each layer has its part."""

    def __init__(self, like: Sequence[Layer], weight: Tensor) -> None:
        super().__init__()
        self._shape = (len(like), like[0].sizes[1], like[0].attention.head_dim)
        self._whole = weight.new_empty(0)
        self.moves = 0
        """How often it has come to lie elsewhere."""

    def reserve(self, slots: int, length: int) -> None:
        """Make room for this many slots of this length, keeping what is there."""
        if slots <= self.slots and length <= self.length:
            return
        layers, heads, width = self._shape
        new_slots, new_length = max(slots, self.slots), max(-(-length // _GROWTH) * _GROWTH, self.length)
        whole = self._whole.new_zeros(layers, 2, new_slots, heads, new_length, width)
        if self.slots:
            whole[:, :, : self.slots, :, : self.length] = self._whole
        self._whole, self.slots, self.length = whole, new_slots, new_length
        self.layers = {number: (whole[number, 0], whole[number, 1]) for number in range(layers)}
        self.moves += 1

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give other slots the first positions of one."""
        if targets:
            where = torch.tensor(targets, device=self._whole.device)
            self._whole[:, :, where, :, :length] = self._whole[:, :, source : source + 1, :, :length]

    def clear(self) -> None:
        """Give the memory back."""
        self._whole, self.layers = self._whole.new_empty(0), {}
        self.slots = self.length = 0
        self.moves += 1


class Space:
    """Weights, cache and graphs that belong together."""

    def __init__(self, layers: Sequence[Layer], adapter: Adapter | None) -> None:
        self.names = frozenset[str]() if adapter is None else frozenset(adapter.weights)
        self.layers = [self._own(layer) for layer in layers]
        self.cache = StackedCache(layers, layers[0].qkv.weight)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[int, StepGraph] = {}
        self._captured_at = 0

    def fill(self, base: Base, adapter: Adapter | None) -> None:
        """Merge an adapter into the weights."""
        if adapter is None:
            return
        for layer, original in zip(self.layers, gpu_layers(base) or (), strict=True):
            for which, linears in layer.linears.items():
                weight, start = getattr(layer, which).weight, 0
                for linear in linears:
                    rows = slice(start, start + linear.out_features)
                    start = rows.stop
                    if (pair := adapter.weights.get(linear.name)) is not None:
                        plain_rows = getattr(original, which).weight[rows].float()
                        weight[rows] = torch.addmm(plain_rows, pair[1], pair[0], alpha=adapter.scale)

    def graph(self, base: Base, slots: int, inputs: Tensor) -> StepGraph:
        """The graph for a number of slots, captured with these inputs if there is none."""
        if self._captured_at != self.cache.moves:
            self._forget_graphs()
            self._captured_at = self.cache.moves
        if slots not in self.graphs:
            self.graphs[slots] = StepGraph(base, self, inputs)
        return self.graphs[slots]

    def clear(self) -> None:
        """Give back the memory of the cache and of the graphs."""
        self._forget_graphs()
        self.cache.clear()

    def _forget_graphs(self) -> None:
        self.graphs.clear()
        self.pool = torch.cuda.graph_pool_handle()  # a pool dies with its last graph

    def _own(self, layer: Layer) -> Layer:
        copies: dict[str, Any] = {}
        for which, linears in layer.linears.items():
            if any(linear.name in self.names for linear in linears):
                product = getattr(layer, which)
                copies[which] = Product(product.weight.detach().clone(), product.bias)
        return dataclasses.replace(layer, **copies)


class Lease:
    """The use of a space, which is free again when nobody holds this any more."""

    def __init__(self, space: Space, base: Base) -> None:
        self.space = space
        weakref.finalize(self, _give_back, base.spaces, space)


def _lease(base: Base, layers: Sequence[Layer], adapter: Adapter | None) -> Lease:
    names = frozenset[str]() if adapter is None else frozenset(adapter.weights)
    free = next((space for space in base.spaces if space.names == names), None)
    if free is not None:
        base.spaces.remove(free)
    space = free or Space(layers, adapter)
    space.fill(base, adapter)
    return Lease(space, base)


def _give_back(spaces: list[Space], space: Space) -> None:
    spaces.append(space)
    del spaces[:-_SPARE_SPACES]


class StepGraph:
    """One step for a number of slots: (4, slots) of numbers in, (2, slots) of tokens and log-probabilities out."""

    def __init__(self, base: Base, space: Space, inputs: Tensor) -> None:
        self._inputs = inputs.clone()
        side = torch.cuda.Stream(base.device)
        side.wait_stream(torch.cuda.current_stream(base.device))
        with torch.cuda.stream(side):  # compiles and allocates what capturing must not; the same step twice is harmless
            self._step(base, space)
        torch.cuda.current_stream(base.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=space.pool, capture_error_mode="thread_local"):
            self.logits, self.chosen = self._step(base, space)

    def replay(self, inputs: Tensor) -> None:
        """Make the step with other inputs."""
        self._inputs.copy_(inputs)
        self._graph.replay()

    def _step(self, base: Base, space: Space) -> tuple[Tensor, Tensor]:
        from .kernels import decode_attention

        tokens, positions = self._inputs[0].long(), self._inputs[1].long()

        def attend(q: Tensor, k: Tensor, v: Tensor, traits: Traits) -> Tensor:
            keys, values = space.cache.layers[traits.layer]
            scale = q.shape[-1] ** -0.5 if traits.scale is None else traits.scale
            return decode_attention(q, k, v, keys, values, positions, scale, traits.window)

        logits = base.head.logits(run_body(base, space.layers, plain, tokens, positions, attend))
        logprobs = logits.log_softmax(dim=1)
        chosen = pick(logprobs, self._inputs[2].float(), self._inputs[3])
        values = logprobs.gather(1, chosen[:, None])[:, 0]
        return logits, torch.stack([chosen.double(), values.double()])


class GraphDecoder(Decoder):
    """Reads prompts with the fused body, and grows samples with graphs."""

    def __init__(self, base: Base, lease: Lease) -> None:
        super().__init__(base, {})
        self._lease, self._space = lease, lease.space
        self.cache = self._space.cache

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Make room for all that the lanes may come to need: a cache that grows would have to be captured again."""
        self.cache.reserve(_size_for(len(lanes)), max(lane.longest for lane in lanes))

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """One more token for each of the first slots; the logits after it, (slots, vocabulary)."""
        return self._replayed(np.array([tokens, positions, [0] * len(tokens), [0] * len(tokens)])).logits[: len(tokens)]

    def grow(self, lanes: Sequence[Lane]) -> None:
        """Read the last token of every lane, and choose its next one."""
        if any(is_truncated(lane.request.params) for lane in lanes):
            super().grow(lanes)
            return
        numbers = [[lane.tokens[-1], lane.position, lane.request.params.temperature] for lane in lanes]
        inputs = np.concatenate([np.array(numbers, np.float64).T, uniforms(lanes).numpy()[None]])
        tokens, logprobs = self._replayed(inputs).chosen.tolist()
        for lane, token, logprob in zip(lanes, tokens, logprobs, strict=False):
            lane.add(int(token), logprob)

    def release(self) -> None:
        """Let go of the cache and of the graphs; there was too little memory."""
        self._space.clear()

    @torch.inference_mode()
    def _replayed(self, numbers: Any) -> StepGraph:
        slots = _size_for(numbers.shape[1])
        inputs = np.zeros((4, slots))
        inputs[:, : numbers.shape[1]] = numbers
        self.cache.reserve(slots, int(numbers[1].max()) + 1)
        on_device = torch.from_numpy(inputs).to(self.base.device)
        graph = self._space.graph(self.base, slots, on_device)
        graph.replay(on_device)
        return graph

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        tokens, positions = tokens.to(self.base.device), positions.to(self.base.device)
        return run_body(self.base, self._space.layers, plain, tokens, positions, layout.attend_rows)


def _size_for(slots: int) -> int:
    """The smallest number of slots that there are graphs for."""
    if slots > _SIZES[-1]:
        return -(-slots // _SIZES[-1]) * _SIZES[-1]
    return _SIZES[bisect.bisect_left(_SIZES, slots)]
