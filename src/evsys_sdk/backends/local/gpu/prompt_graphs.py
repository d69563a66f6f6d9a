"""Prefill on a GPU as a captured graph, because launching its kernels takes longer than running them for few prompts.

Graphs have the fixed shapes of training passes, and write keys and values into one cache. Prompts with a known prefix
are computed without a graph.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.attention import Traits, varlen_rows
from ..base.loading import Base
from ..base.packing import Ints, MicroBatch
from ..sampling.reading import Reading, places_of
from .fused_body import Linear, run_body
from .training_graphs import Shape, TrainingGraphs, fill, index_of, inputs_of

type LinearFor = Callable[[Tensor], Linear]
"""(bank row of each token's adapter) -> the products of a prefill."""


class PromptGraphs(TrainingGraphs):
    """The graphs of prefills into the cache of one space."""

    def __init__(self, base: Base, space: Any, linear_for: LinearFor) -> None:
        super().__init__(base, {}, [])
        self._space, self._linear_for = space, linear_for

    def compute(self, reading: Reading, owners: Ints) -> Tensor | None:
        """Return the last hidden states of a row of prompts; None if there is no graph for it."""
        if reading.has_known_tokens:
            return None
        batch = MicroBatch(reading.tokens, reading.positions, reading.segments, (), ())
        graph = self.find(batch)
        return None if graph is None else graph.compute(batch, places_of(reading.stores), owners)

    def _make(self, shape: Shape, inputs: Any) -> Any:
        return PromptGraph(self._base, self._space, self._linear_for, shape, inputs, self._pool)


class PromptGraph:
    """A captured prefill for prompts of one shape."""

    def __init__(self, base: Base, space: Any, linear_for: LinearFor, shape: Shape, inputs: Any, pool: Any) -> None:
        self._shape = shape
        self._inputs = [torch.from_numpy(part).to(base.device) for part in inputs]
        # Every key is stored at least once, and a shared one once for each of its prompts.
        count = max(shape.tokens, shape.keys)
        self._places = [torch.zeros(count, dtype=torch.int64, device=base.device) for _ in range(3)]
        self._owners = torch.zeros(shape.tokens, dtype=torch.int32, device=base.device)
        self._stored = 0
        side = torch.cuda.Stream(base.device)
        side.wait_stream(torch.cuda.current_stream(base.device))
        with torch.cuda.stream(side):  # warm-up: compile and allocate before capturing
            self._run(base, space, linear_for)
        torch.cuda.current_stream(base.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._hidden = self._run(base, space, linear_for)

    def compute(self, batch: MicroBatch, places: tuple[Ints, Ints, Ints], owners: Ints) -> Tensor:
        """Store the keys and values of prompts; return hidden states, which the next call overwrites."""
        for buffer, part in zip(self._inputs, inputs_of(batch, self._shape), strict=True):
            buffer.copy_(torch.from_numpy(part))
        for buffer, part in zip(self._places, places, strict=True):
            buffer.copy_(torch.from_numpy(fill(part, len(buffer))))  # the last entry again, which changes nothing
        self._owners.copy_(torch.from_numpy(fill(owners.astype(np.int32), len(self._owners))))
        self._graph.replay()
        return self._hidden[: len(batch.tokens)]

    def _run(self, base: Base, space: Any, linear_for: LinearFor) -> Tensor:
        from .row_kernels import store_rows

        tokens, positions, *_ = self._inputs
        index = index_of(self._inputs, self._shape)

        def attend(q: Tensor, k: Tensor, v: Tensor, traits: Traits) -> Tensor:
            store_rows(k, v, space.cache.layers[traits.layer], *self._places)
            return varlen_rows(q, k, v, index, traits)

        return run_body(base, space.layers, linear_for(self._owners), tokens, positions, attend)
