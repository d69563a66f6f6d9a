"""Decoding on a GPU: one captured graph computes a step of all running samples and chooses their next tokens.

A graph uses fixed memory addresses. So weights, cache and graphs form a `Space` that outlives a snapshot: the next
snapshot with the same layers is merged into the same memory and uses the same graphs. A graph has a fixed number of
slots; the results of slots without a sample are ignored.
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
from torch.nn import functional as F

from .. import memory
from ..base.four_bit import FourBit, dense
from ..base.fused_layers import Layer
from ..base.loading import Base
from ..base.lora import LoRAAdapter
from ..base.products import Product
from ..sampling.decoding import TokenDecoder
from ..sampling.lanes import Lane, advance, bias_of, needs_logits, uniforms
from ..sampling.snapshot import Snapshot
from .fused_body import gpu_layers, plain, run_body
from .prompt_graphs import LinearFor, PromptGraphs
from .stacked_cache import StackedCache

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of slots that graphs are captured for; above the last, its multiples."""
_SPARE_SPACES = 2
_INPUTS = 8
"""Inputs of a step for each slot: token, position, slot with the same prompt, length of that prompt, temperature,
random number, bank row of the adapter, and row of the logit bias plus 1."""
_MANY, _BIASES = 96, 8
"""Minimum slots for the separate kernel that reads shared prompts; maximum logit biases of a step."""
_QUIET_STEPS = 2
"""Number of steps without a finished or new sample after which the next step is launched ahead."""


def graph_decoder(base: Base, snapshot: Snapshot) -> GraphDecoder | None:
    """Return a decoder with captured graphs; None if the base or the snapshot does not support it."""
    layers = gpu_layers(base)
    if layers is None or ((snapshot.adapter is not None or base.key.four_bit) and not snapshot.merges):
        return None
    if layers[0].gate_up.bias is not None:
        return None  # the kernels for few rows add a bias after the gate
    if not isinstance(snapshot.prepared, Lease):
        try:
            snapshot.prepared = _lease(base, layers, snapshot.adapter)
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            memory.release_unused()
            return None
    return GraphDecoder(base, snapshot.prepared)


class Space:
    """Weights, cache and the graphs that were captured with them."""

    def __init__(self, base: Base, layers: Sequence[Layer], adapter: LoRAAdapter | None) -> None:
        self.names: frozenset[str] = frozenset[str]() if adapter is None else frozenset(adapter.weights)
        self.layers = [self._copy_layer(layer) for layer in layers]
        self.cache = StackedCache(layers, self.layers[0].qkv.weight)
        self.room: Any = None
        """Working memory shared by the graphs."""
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, bool, int], StepGraph] = {}
        self.prompt_graphs: PromptGraphs | None = None
        self.bank: Any = None
        """Bank of adapters for joint decoding; None if the adapter is merged."""
        self.biases = torch.zeros(_BIASES, len(base.head.weight), device=base.device)
        self._captured_at = 0

    def fill(self, base: Base, adapter: LoRAAdapter | None) -> None:
        """Merge an adapter into the weights of this space."""
        if adapter is None:
            return
        from .row_kernels import merge

        for layer, original in zip(self.layers, gpu_layers(base) or (), strict=True):
            for which, linears in layer.linears.items():
                weight, start = getattr(layer, which).weight, 0
                for linear in linears:
                    rows = slice(start, start + linear.out_features)
                    start = rows.stop
                    if (pair := adapter.weights.get(linear.name)) is not None:
                        frozen = dense(getattr(original, which).weight[rows])
                        merge(frozen, *pair, adapter.scale, weight[rows])

    def graph(self, base: Base, inputs: Tensor, *, prompts: bool) -> StepGraph:
        """Return the graph for the inputs' number of slots, with or without shared prompts; capture it if missing."""
        self._check_cache()
        kind = inputs.shape[1], prompts, 0 if self.bank is None else self.bank.most
        if kind not in self.graphs:
            self.graphs[kind] = StepGraph(base, self, inputs, prompts=prompts)
        return self.graphs[kind]

    def compute_prompts(self, base: Base, reading: Any, owners: Any, linear_for: LinearFor) -> Tensor | None:
        """Return the last hidden states of a row of prompts from a captured graph; None if there is none for it."""
        self._check_cache()
        if self.prompt_graphs is None:
            self.prompt_graphs = PromptGraphs(base, self, linear_for)
        return self.prompt_graphs.compute(reading, owners)

    def clear(self) -> None:
        """Release the memory of the cache and of the graphs."""
        self._forget_graphs()
        self.cache.clear()

    def _check_cache(self) -> None:
        """Forget all graphs if the cache has moved."""
        if self._captured_at != self.cache.moves:
            self._forget_graphs()
            self._captured_at = self.cache.moves

    def _forget_graphs(self) -> None:
        self.graphs.clear()
        self.prompt_graphs = self.room = None
        self.pool = torch.cuda.graph_pool_handle()  # a pool dies with its last graph

    def _copy_layer(self, layer: Layer) -> Layer:
        copies: dict[str, Any] = {}
        for which, linears in layer.linears.items():
            product = getattr(layer, which)
            if isinstance(product.weight, FourBit):
                copies[which] = Product(product.weight.dense(), product.bias)
            elif any(linear.name in self.names for linear in linears):
                copies[which] = Product(product.weight.detach().clone(), product.bias)
        return dataclasses.replace(layer, **copies)


class Lease:
    """Exclusive use of a space; the space becomes free when the lease is garbage-collected."""

    def __init__(self, space: Space, base: Base) -> None:
        self.space = space
        # Every training step makes new snapshots; the captured graphs are kept for the next one.
        weakref.finalize(self, _give_back, base.spaces, space)


def _lease(base: Base, layers: Sequence[Layer], adapter: LoRAAdapter | None) -> Lease:
    names = frozenset[str]() if adapter is None else frozenset(adapter.weights)
    free = next((space for space in base.spaces if space.names == names), None)
    if free is not None:
        try:
            base.spaces.remove(free)
        except ValueError:  # another thread has released the free spaces
            free = None
    space = free or Space(base, layers, adapter)
    space.fill(base, adapter)
    return Lease(space, base)


def _give_back(spaces: list[Space], space: Space) -> None:
    spaces.append(space)
    del spaces[:-_SPARE_SPACES]


class StepGraph:
    """A captured step for a number of slots: (inputs, slots) -> (2, slots), tokens and log-probabilities."""

    def __init__(self, base: Base, space: Space, inputs: Tensor, *, prompts: bool) -> None:
        from .decode_kernels import Room

        self._inputs, self._prompts = inputs.clone(), prompts
        if space.room is None:
            space.room = Room(base.hidden_size, base.device)
        side = torch.cuda.Stream(base.device)
        side.wait_stream(torch.cuda.current_stream(base.device))
        with torch.cuda.stream(side):  # warm-up: compile and allocate before capturing; repeating the step is harmless
            self._step(base, space)
        torch.cuda.current_stream(base.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, e.g. training, may use the device during the capture.
        with torch.cuda.graph(self._graph, pool=space.pool, capture_error_mode="thread_local"):
            self.logits, self.chosen = self._step(base, space)

    def replay(self, inputs: Tensor) -> None:
        """Run the step with other inputs."""
        self._inputs.copy_(inputs)
        self._graph.replay()

    def _step(self, base: Base, space: Space) -> tuple[Tensor, Tensor]:
        from .choice import pick
        from .decode_step import read_tokens

        tokens, positions, homes, shared = self._inputs[:4].long()
        where = (positions, homes, shared)
        bank = None if space.bank is None else (space.bank, self._inputs[6].int())
        hidden = read_tokens(base, space.layers, space.cache, space.room, tokens, where, bank, prompts=self._prompts)
        logits = base.head.to_logits(F.linear(hidden, base.head.weight, base.head.bias))
        return logits, pick(logits, self._inputs[4], self._inputs[5], space.biases, self._inputs[7].int())


class _Launched:
    """A launched step; its results are copied to the host while later steps run."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._results = torch.empty(graph.chosen.shape, dtype=torch.float64, pin_memory=True)
        self._results.copy_(graph.chosen, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def results(self) -> list[list[float]]:
        """Wait for the tokens and log-probabilities and return them."""
        self._arrived.synchronize()
        return self._results.tolist()


class GraphDecoder(TokenDecoder):
    """Prefills with the fused body and decodes with graphs.

    If no sample has ended for a few steps, the next step is launched before the results of the last one are read. If a
    sample then ends, the step is repeated without it, which does not change the other samples.
    """

    def __init__(self, base: Base, lease: Lease) -> None:
        super().__init__(base, {})
        self._lease, self._space = lease, lease.space
        self.cache = self._space.cache
        self._ahead: tuple[int, _Launched] | None = None
        """The step launched ahead, and the total number of tokens of the lanes that it is valid for."""
        self._lanes: list[Lane] = []
        """Lanes of the last step."""
        self._quiet = 0
        """Number of steps since a sample ended or joined."""
        self._prompts: Any = None
        """For each lane, the slot with the same prompt, and the length of the prompt."""
        self._biases: Any = 0
        """Row of each lane's logit bias plus 1; None if there are too many biases."""
        self._bank_rows: Any = 0
        """Bank row of each lane's adapter in joint decoding."""

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Reserve the cache for the final length of the lanes, because graphs are captured again when it grows."""
        self.cache.reserve(_size_for(len(lanes)), max(lane.longest for lane in lanes))

    @torch.inference_mode()
    def grow(self, lanes: Sequence[Lane]) -> None:
        """Decode the last token of every lane and choose its next token."""
        ahead, self._ahead = self._ahead, None
        # Lanes are compared by identity; if the batch or its order changes, the step launched ahead is invalid.
        if self._lanes != lanes:
            self._lanes, self._quiet, ahead = list(lanes), 0, None
            self._prompts = _find_shared_prompts(lanes)
            self._biases = self._place_biases(lanes)
        if self._biases is None or any(needs_logits(lane.request.params) for lane in lanes):
            graph = self._replay(self._inputs_of(lanes, ahead=0))
            advance(lanes, graph.logits[: len(lanes)].float())
            return
        count = sum(len(lane.tokens) for lane in lanes)
        # The step launched ahead is valid only if every lane has grown by exactly one token.
        if ahead is not None and ahead[0] == count:
            now = ahead[1]
        else:
            now = _Launched(self._replay(self._inputs_of(lanes, ahead=0)))
        if self._quiet >= _QUIET_STEPS and all(lane.left > 1 for lane in lanes):
            following = self._replay(self._inputs_of(lanes, ahead=1), after=now.graph)
            self._ahead = (count + len(lanes), _Launched(following))
        # Results of unused slots are ignored.
        for lane, token, logprob in zip(lanes, *now.results(), strict=False):
            lane.add(int(token), logprob)
        self._quiet += 1

    def _place_biases(self, lanes: Sequence[Lane]) -> list[int] | None:
        """Copy the logit biases of the lanes to where graphs read them; return their rows plus 1, None if too many."""
        biases = {id(lane.request.params.logit_bias): lane.request for lane in lanes if lane.request.params.logit_bias}
        if len(biases) > _BIASES:
            return None
        for row, request in enumerate(biases.values()):
            if (bias := bias_of(request, self.base.device)) is not None:
                self._space.biases[row].zero_()[bias[0]] = bias[1]
        numbers = {key: row + 1 for row, key in enumerate(biases)}
        return [numbers.get(id(lane.request.params.logit_bias), 0) for lane in lanes]

    def release(self) -> None:
        """Release the cache and the graphs, after memory ran out."""
        self._ahead, self._lanes = None, []
        self._space.clear()

    @torch.inference_mode()
    def _replay(self, numbers: Any, *, after: StepGraph | None = None) -> StepGraph:
        """Run a step with these inputs and return its graph; with `after`, use the tokens that `after` has chosen."""
        slots = _size_for(numbers.shape[1])
        inputs = np.zeros((_INPUTS, slots))
        inputs[:, : numbers.shape[1]] = numbers
        self.cache.reserve(slots, int(numbers[1].max()) + 1)
        # From pinned memory, so that the copy is asynchronous.
        on_device = torch.from_numpy(inputs).pin_memory().to(self.base.device, non_blocking=True)
        if after is not None:
            on_device[0] = after.chosen[0]
        share = numbers.shape[1] >= max(_MANY, 2 * len(np.unique(numbers[2])))
        graph = self._space.graph(self.base, on_device, prompts=share)
        graph.replay(on_device)
        return graph

    def _inputs_of(self, lanes: Sequence[Lane], *, ahead: int) -> Any:
        numbers = np.empty((_INPUTS, len(lanes)))
        numbers[0] = [lane.tokens[-1] for lane in lanes]
        numbers[1] = [lane.position + ahead for lane in lanes]
        numbers[2:4] = self._prompts
        numbers[4] = [lane.request.params.temperature for lane in lanes]
        numbers[5] = uniforms(lanes, ahead=ahead).numpy()
        numbers[6] = self._bank_rows
        numbers[7] = self._biases or 0
        return numbers

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        owners = np.zeros(len(tokens), np.int32)
        for number, part in layout.reading.owned:
            owners[part] = number
        hidden = self._space.compute_prompts(self.base, layout.reading, owners, self._linear_for)
        if hidden is not None:
            return hidden
        tokens, positions, of = (part.to(self.base.device) for part in (tokens, positions, torch.from_numpy(owners)))
        return run_body(self.base, self._space.layers, self._linear_for(of), tokens, positions, layout.attend_rows)

    @property
    def _linear_for(self) -> LinearFor:
        """The products of a prefill, from the bank row of each token's adapter."""
        return lambda _: plain_in_place


def plain_in_place(layer: Layer, which: str, x: Tensor, onto: Tensor | None) -> Tensor:
    """Compute a product with the base weights; `onto` is overwritten."""
    from .decode_step import add_product

    return plain(layer, which, x, None) if onto is None else add_product(onto, x, getattr(layer, which))


def _find_shared_prompts(lanes: Sequence[Lane]) -> Any:
    """Return (2, lanes): the first slot with the same prompt, and the length of the prompt.

    A lane with an unshared prompt refers to its own slot, so that attention is split and rounded in the same way.
    """
    first: dict[Any, int] = {}
    homes = [first.setdefault(lane.request.key, slot) for slot, lane in enumerate(lanes)]
    return np.array([homes, [len(lane.request.prompt) for lane in lanes]], np.float64)


def _size_for(slots: int) -> int:
    """Return the smallest captured number of slots that is at least `slots`."""
    if slots > _SIZES[-1]:
        return -(-slots // _SIZES[-1]) * _SIZES[-1]
    return _SIZES[bisect.bisect_left(_SIZES, slots)]
