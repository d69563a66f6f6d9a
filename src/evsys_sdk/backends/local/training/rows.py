"""The computation of one packed row: log-probabilities of its targets and, for training, the gradient of the adapter.

A row is computed alone, or jointly with rows of other runs on the same base, each with its own adapter. Joint rows are
concatenated and padded to the same length, so that the products of all adapters are batched.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datum import Datum, Floats
from ..base import packing
from ..base.attention import Segment
from ..base.head import Scored, Targets
from ..base.loading import Base
from ..base.lora import Change, LoRAAdapter, StackedPart
from ..gpu.fused_body import hidden_of
from ..gpu.training_graphs import ROUND_TOKENS, TrainingGraphs

if TYPE_CHECKING:
    from .passes import LocalTrainingState

type Mask = NDArray[np.bool_]

_KEPT_STACKS = 3
"""Maximum number of cached stacks; each holds the memory of its captured passes."""
_REGULAR = 8
"""Passes of a number of runs after which this number counts as regular, so that its passes are captured."""
_ALIGNED = 16
"""Joint rows are padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The log-probabilities to compute for one row, sorted by their position in the row."""

    places: NDArray[np.int64]
    """Positions in the row whose hidden states are needed, without duplicates."""
    row: NDArray[np.int64]
    """Index into `places` of each entry."""
    token: NDArray[np.int64]
    order: NDArray[np.int64]
    """Index of each entry before sorting: by member, then by position."""

    @classmethod
    def of(cls, batch: packing.MicroBatch, data: Sequence[Datum], masks: Sequence[Mask]) -> Entries:
        places: list[NDArray[np.int64]] = []
        tokens: list[NDArray[np.int64]] = []
        for member, place in zip(batch.members, batch.places, strict=True):
            datum, mask = data[member], masks[member]
            position = np.nonzero(mask)[0]
            places.append(place[position])
            tokens.append(datum.target_tokens[mask])
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        unique, row = np.unique(place[order], return_inverse=True)
        return cls(unique, row, np.concatenate(tokens)[order], order)


@dataclass(eq=False, slots=True)
class RowJob:
    """One row of a run to compute, and its results."""

    state: LocalTrainingState
    batch: packing.MicroBatch
    entries: Entries
    slope_of: Callable[[Floats], Floats] | None
    """Maps log-probabilities of the entries to the gradient of the loss; None for a forward pass only."""
    logprobs: Floats | None = None
    gradient: Tensor | None = None
    """Gradient of the adapter, as one vector."""
    error: BaseException | None = None
    seconds: float = 0.0
    """Its share of the duration of a joint pass."""
    is_taken: bool = False
    """Whether a leader has taken the row for a pass."""
    has_ended: bool = False
    """Whether the leader has finished with the row, successfully or not."""

    @property
    def tokens(self) -> int:
        return len(self.batch.tokens)

    @property
    def is_large(self) -> bool:
        """Whether the row fills more than half of a pass."""
        return 2 * self.tokens > self.state.fitting.tokens_at_once

    def slopes(self) -> Floats:
        """Return the gradient of the loss for each entry; if the loss fails, store its error and return zeros."""
        assert self.slope_of is not None
        assert self.logprobs is not None
        try:
            return self.slope_of(self.logprobs)
        except BaseException as error:
            self.error = error
            return np.zeros(len(self.logprobs), np.float32)


def read_alone(job: RowJob, parts: dict[str, Change]) -> None:
    """Compute a row alone."""
    state, batch, train = job.state, job.batch, job.slope_of is not None
    base = state.base
    targets = _targets([job.entries], base.device)
    places = torch.from_numpy(job.entries.places).to(base.device)
    with state.clock.turn(), torch.set_grad_enabled(train):
        graph = state.graph_of(batch) if train else None
        if graph is None:
            tokens, positions = (torch.from_numpy(part).to(base.device) for part in (batch.tokens, batch.positions))
            recompute = train and state.recomputes(batch)
            live = hidden_of(base, parts, tokens, positions, batch.layout(), recompute=recompute)[places]
        else:
            live = graph.forward(batch)[places]
        # Detached, because the gradient of the head has a closed form; autograd covers only the body.
        scored = base.head.score(live.detach(), targets, with_gradient=train)
    job.logprobs = logprobs = scored.logprobs.cpu().numpy()
    if job.slope_of is None:
        return
    slopes = job.slope_of(logprobs)
    with state.clock.turn():
        into = _into_hidden(base, scored, targets, slopes, live.dtype)
        if graph is not None:
            [job.gradient] = graph.backward(places, into)
        else:
            gradients = torch.autograd.grad(live, state.optimizer.parameters, into)
            job.gradient = torch.cat([part.flatten() for part in gradients])


class Stack:
    """Stacked adapters of one form, in the dtype of the base, with the leaf tensors for autograd."""

    def __init__(self, base: Base, adapters: Sequence[LoRAAdapter]) -> None:
        first = adapters[0]
        self._whole = torch.empty(len(adapters), len(first.lay_flat()), dtype=base.key.dtype, device=base.device)
        self.leaves = [part.detach().requires_grad_() for part in first.split(self._whole)]
        pairs = zip(self.leaves[0::2], self.leaves[1::2], strict=True)
        self.parts: dict[str, Change] = {
            name: StackedPart(a, b, first.scale) for name, (a, b) in zip(first.weights, pairs, strict=True)
        }
        self.graphs = TrainingGraphs(base, self.parts, self.leaves, len(adapters))
        self.passes = 0

    @torch.no_grad()
    def fill(self, adapters: Sequence[LoRAAdapter]) -> None:
        """Copy the current weights of these adapters."""
        for row, adapter in zip(self._whole, adapters, strict=True):
            row.copy_(adapter.lay_flat())


def read_together(base: Base, jobs: Sequence[RowJob], stacks: dict[Any, Stack]) -> None:
    """Compute rows of several runs in one pass; their adapters have the same form. `stacks` caches stacked adapters."""
    train, length = jobs[0].slope_of is not None, joint_length(jobs)
    batch = _lay_out([job.batch for job in jobs], length)
    entries = [job.entries for job in jobs]
    places = torch.from_numpy(
        np.concatenate([entry.places + number * length for number, entry in enumerate(entries)])
    ).to(base.device)
    recompute = train and any(job.state.recomputes_from(len(batch.tokens)) for job in jobs)
    adapters = [job.state.adapter for job in jobs]
    began = 0.0
    with base.turns, torch.set_grad_enabled(train):
        began = time.perf_counter()
        form = jobs[0].state.form, len(jobs)
        stack = stacks[form] = stacks.pop(form, None) or Stack(base, adapters)
        for old in list(stacks)[:-_KEPT_STACKS]:
            del stacks[old]
        stack.fill(adapters)
        targets = _targets(entries, base.device)
        # Other numbers than one and all may vary from pass to pass, which would capture again and again.
        stack.passes += 1
        is_regular = len(jobs) in (1, getattr(base.joiner, "members", 0)) or stack.passes > _REGULAR
        graph = stack.graphs.find(batch) if train and not recompute and is_regular else None
        if graph is None:
            ids, at = (torch.from_numpy(part).to(base.device) for part in (batch.tokens, batch.positions))
            live = hidden_of(base, stack.parts, ids, at, batch.layout(), recompute=recompute)[places]
        else:
            live = graph.forward(batch)[places]
        scored = base.head.score(live.detach(), targets, with_gradient=train)
        all_logprobs = scored.logprobs.cpu().numpy()
    ends = np.cumsum([len(entry.token) for entry in entries])
    for job, logprobs in zip(jobs, np.split(all_logprobs, ends[:-1]), strict=True):
        job.logprobs = logprobs
    seconds = time.perf_counter() - began
    if train:
        slopes = np.concatenate([job.slopes() for job in jobs])
        with base.turns:
            began = time.perf_counter()
            into = _into_hidden(base, scored, targets, slopes, live.dtype)
            if graph is None:
                gradients = torch.autograd.grad(live, stack.leaves, into)
                joined = torch.cat([part.reshape(len(jobs), -1) for part in gradients], dim=1).float()
            else:
                joined = graph.backward(places, into)
            seconds += time.perf_counter() - began
        for job, gradient in zip(jobs, joined, strict=True):
            job.gradient = gradient
    total = sum(job.tokens for job in jobs)
    for job in jobs:
        job.seconds = seconds * job.tokens / total


def joint_length(jobs: Sequence[RowJob]) -> int:
    """Return the length that each row is padded to; on a GPU the sum is a multiple of `ROUND_TOKENS`."""
    on_gpu = jobs[0].state.base.device.type == "cuda"
    aligned = max(_ALIGNED, ROUND_TOKENS // math.gcd(ROUND_TOKENS, len(jobs))) if on_gpu else _ALIGNED
    return -(-max(job.tokens for job in jobs) // aligned) * aligned


def _lay_out(batches: Sequence[packing.MicroBatch], length: int) -> packing.MicroBatch:
    """Concatenate rows, each padded with a separate sequence."""
    tokens, positions = np.zeros((2, len(batches), length), np.int64)
    segments: list[Segment] = []
    for number, batch in enumerate(batches):
        start, count = number * length, len(batch.tokens)
        tokens[number, :count], positions[number, :count] = batch.tokens, batch.positions
        positions[number, count:] = np.arange(length - count)
        segments += [
            Segment(segment.start + start, segment.length, segment.prefix_start + start, segment.prefix_length)
            for segment in batch.segments
        ]
        if count < length:
            segments.append(Segment(start + count, length - count))
    return packing.MicroBatch(tokens.ravel(), positions.ravel(), tuple(segments), (), ())


def _targets(entries: Sequence[Entries], device: torch.device) -> Targets:
    before = np.cumsum([0, *(len(entry.places) for entry in entries)])
    rows = np.concatenate([entry.row + start for entry, start in zip(entries, before, strict=False)])
    tokens = np.concatenate([entry.token for entry in entries])
    return Targets(torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device))


def _into_hidden(base: Base, scored: Scored, targets: Targets, slopes: Floats, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the hidden states, given the gradient of the log-probabilities."""
    return base.head.gradient(scored, targets, torch.from_numpy(slopes).to(base.device)).to(dtype)
