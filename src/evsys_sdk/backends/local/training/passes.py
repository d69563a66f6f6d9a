"""A model in training: passes over data whose gradients add up, optimiser steps, and what a checkpoint holds of it.

One packed row at a time is read and, to train, differentiated. The loss is a function of log-probabilities and comes
from `backends.losses`, so it is the same on every backend; its gradient enters the model through the head.

A row that does not fit into memory is tried again with less: first everything goes that is only kept to be faster, then
the row is split, then layers are recomputed. If nothing helps, the call fails and has changed nothing.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ....log import get_logger
from ...client import AdamParams, ForwardBackwardOutput
from ...datum import Datum, Floats
from ...losses import Loss, LossResult
from ...seeds import stream_of
from .. import memory
from ..base import packing
from ..base.loading import Base
from ..base.lora import LoRAAdapter
from ..base.turns import Clock
from ..gpu.training_graphs import PassGraph, TrainingGraphs
from .joining import joiner_of
from .optimizer import AdapterOptimizer
from .recompute import find_layers
from .rows import Entries, Mask, RowJob, read_alone

_WORTH_CHECKING = 1 << 29
_SURE = 0.8
"""An estimate may be too high by this much."""

type Slopes = Callable[[Sequence[int], Sequence[Floats]], Sequence[Floats]]
"""(numbers of data, their log-probabilities) -> the gradient of the loss with respect to these."""


@dataclass(frozen=True, slots=True)
class PassSettings:
    """How data is read."""

    tokens_at_once: int = 2048
    share_prefixes: bool = True
    dropout: float = 0.0
    recompute: Literal["auto", "always", "never"] = "auto"
    """Whether layers are run again in the backward pass instead of keeping what they computed."""
    recompute_from: int | None = None
    """With auto, how long a row is that is known not to fit otherwise."""
    bytes_per_token: tuple[int, int] = (0, 0)
    """What a token takes until its gradient is there, by estimate: without recomputation, and with it."""
    join: bool = False
    """Whether rows are read together with those of other runs on the base."""


@dataclass(slots=True)
class Fitting:
    """What fits into memory, as far as is known; passes that did not fit have lowered it."""

    tokens_at_once: int
    recompute_from: int | None
    """Rows of at least so many tokens are recomputed; None means none."""


class LocalTrainingState:
    """An adapter in training on a shared base. Not thread-safe: one worker owns it."""

    def __init__(self, base: Base, adapter: LoRAAdapter, settings: PassSettings, *, seed: int) -> None:
        self.base, self.settings, self._seed = base, settings, seed
        recompute_from = 0 if settings.recompute == "always" else settings.recompute_from
        self.fitting = Fitting(settings.tokens_at_once, recompute_from)
        if recompute_from is not None:
            memory.give_back_at_once(base.device)
        self.reduce: Callable[[Tensor], None] | None = None
        """Sums a gradient over all ranks of the run, in place."""
        self.passes = 0
        """Backward passes so far; they count through the random numbers of dropout."""
        self.clock = Clock(base.turns)
        """What was computed since the last step."""
        self.replace(adapter)
        self._joiner = joiner_of(base) if settings.join and not settings.dropout and not adapter.has_experts else None
        if self._joiner is not None:
            self._joiner.enter(self)

    def close(self) -> None:
        """No longer be waited for by other runs on the base."""
        if self._joiner is not None:
            self._joiner.leave(self)

    def replace(self, adapter: LoRAAdapter, moments: Mapping[str, Tensor] | None = None, steps: int = 0) -> None:
        """Take over another adapter with no gradient, and with a fresh optimizer unless moments are given."""
        optimizer = AdapterOptimizer(adapter)
        if moments is not None:
            optimizer.restore(moments, steps)
        # All of it is there before any of it counts: memory may run out on the way.
        self.adapter, self.optimizer, self.form = adapter, optimizer, hash(adapter.form)
        self.graphs = TrainingGraphs(self.base, adapter.parts(), optimizer.parameters)

    def forward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Loss and log-probabilities of all targets, without a gradient."""
        with self.clock:
            run = _Run(self, data, [_all(datum) for datum in data])
            run.read(None)
            return run.output(loss)

    def forward_backward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Add the gradient of a loss that is a sum over data; only targets that count are scored."""
        with self.clock:
            run = _Run(self, data, [_mask(datum) for datum in data])
            run.read(lambda members, logprobs: loss([data[member] for member in members], logprobs)[2])
            output = run.output(loss)
            run.commit()
        return output

    def backward(self, data: Sequence[Datum], slopes: Sequence[Floats]) -> ForwardBackwardOutput:
        """Add a gradient, given that of the loss with respect to log-probabilities."""
        with self.clock:
            run = _Run(self, data, [slope != 0 for slope in slopes])
            run.read(lambda members, _: [slopes[member] for member in members])
            run.commit()
        return ForwardBackwardOutput(0.0, run.logprobs())

    def forward_backward_whole(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Add the gradient of a loss that may depend on all data at once."""
        with self.clock:
            return self._differentiate_whole(data, loss)

    def _differentiate_whole(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        run = _Run(self, data, [_all(datum) for datum in data])
        if len(run.batches) > 1:
            # Only one row is in memory at a time, and the loss needs the log-probabilities of all: read twice.
            run.read(None, as_trained=True)
        result: list[LossResult] = [loss(data, run.logprobs())] if len(run.batches) > 1 else []

        def slopes(members: Sequence[int], logprobs: Sequence[Floats]) -> list[Floats]:
            if not result and len(members) == len(data):
                in_order = dict(zip(members, logprobs, strict=True))
                result.append(loss(data, [in_order[number] for number in range(len(data))]))
            elif not result:  # the only row was split on the way
                raise _ReadTwice
            return [result[0][2][member] for member in members]

        try:
            run.read(slopes)
        except _ReadTwice:
            run.read(None, as_trained=True)
            result.append(loss(data, run.logprobs()))
            run.read(slopes)
        run.commit()
        return ForwardBackwardOutput(result[0][0], run.logprobs(), result[0][1])

    def step(self, adam: AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and forget it; also tells what was computed since the last step."""
        with self.clock:
            if self.reduce is not None:
                self.reduce(self.optimizer.accumulated)
            found = self.with_room("the optimizer step", lambda: self.optimizer.step(adam))
        return {**found, "time/compute_s": self.clock.take()}

    def graph_of(self, batch: packing.MicroBatch) -> PassGraph | None:
        """A captured pass for a row, on a GPU and where it is worth it."""
        return None if self.settings.dropout or self.recomputes(batch) else self.graphs.find(batch)

    def recomputes(self, batch: packing.MicroBatch) -> bool:
        """Whether the layers are run again for the gradient of a row."""
        return self.recomputes_from(len(batch.tokens))

    def recomputes_from(self, tokens: int) -> bool:
        """The same for a row of so many tokens."""
        start = self.fitting.recompute_from
        return start is not None and tokens >= start

    def read(self, job: RowJob, *, row: int, drop: bool) -> None:
        """Read a row, with those of other runs where these have some at this moment."""
        if self._joiner is not None and self._joiner.read(job):
            return
        dropout = self.settings.dropout if drop else 0.0
        read_alone(job, self.adapter.parts(dropout=dropout, generator=self.dropout_generator(row)))

    def check_room(self, batch: packing.MicroBatch) -> None:
        """Do not begin with a row that cannot fit on a CPU: the system would rather end the process than say so."""
        needed = len(batch.tokens) * self.settings.bytes_per_token[self.recomputes(batch)]
        if self.base.device.type != "cpu" or needed < _WORTH_CHECKING:
            return
        free = memory.available_bytes(self.base.device)
        if free is not None and needed * _SURE > free:
            raise MemoryError(f"{len(batch.tokens)} tokens take about {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free")

    def start_recomputing(self, tokens: int) -> bool:
        """Recompute rows of this length from now on; False where that is not to be had, or done already."""
        start = self.fitting.recompute_from
        if self.settings.recompute == "never" or (start is not None and start <= tokens):
            return False
        if not find_layers(self.base.body):
            return False
        if start is None:
            get_logger(__name__).warning(
                "a sequence of %d tokens did not fit into memory. From now on layers are run a second time for the "
                "gradient of such sequences: it is the same, and takes half as long again. Shorten sequences to "
                "avoid it, or set backend.params.recompute to never to have an error instead",
                tokens,
            )
        self.fitting.recompute_from = tokens
        return True

    def release(self) -> bool:
        """Give up what is only kept to be faster; whether there was anything."""
        held = bool(self.base.spaces) or self.graphs.held
        self.base.spaces.clear()
        self.graphs.forget()
        if self._joiner is not None:
            self._joiner.stacks.clear()
        memory.give_back_at_once(self.base.device)
        return memory.release_unused() or held

    def with_room[T](self, what: str, work: Callable[[], T]) -> T:
        """Do something that succeeds or changes nothing, a second time if it ran out of memory."""
        try:
            return work()
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            memory.forget_frames(error)
        self.release()
        try:
            return work()
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            raise memory.no_room(what, self.base.device) from memory.forget_frames(error)

    def dropout_generator(self, row: int) -> torch.Generator | None:
        """Random numbers for one row of the pass that is under way."""
        if not self.settings.dropout:
            return None
        # A million rows to a pass, so that no two passes share a row's numbers.
        seed = stream_of(self._seed, (self.passes << 20) + row)
        return torch.Generator(self.base.device).manual_seed(seed >> 1)  # generators of all devices take 63 bits


class _ReadTwice(Exception):
    """The loss needs data of a row that is no longer in memory."""


class _Run:
    """One call: rows still to read, what was found, and the gradient, which counts only once all of it is there."""

    def __init__(self, state: LocalTrainingState, data: Sequence[Datum], wanted: Sequence[Mask]) -> None:
        self._state, self._data, self._wanted = state, data, wanted
        self._sequences = [datum.tokens for datum in data]
        self.batches = packing.pack(
            self._sequences, budget=state.fitting.tokens_at_once, share=state.settings.share_prefixes
        )
        self._found: dict[int, Floats] = {}
        self._gradient: Tensor | None = None

    def read(self, slopes: Slopes | None, *, as_trained: bool = False) -> None:
        """Read every row and, given the slopes of the loss, differentiate it; `as_trained` only drops out as then."""
        self._gradient, self._has_released = None, False
        row = 0
        while row < len(self.batches):
            if self._is_known_not_to_fit(self.batches[row]):
                self.batches[row : row + 1] = self._halves(self.batches[row])
                continue
            try:
                gradient = self._read_row(self.batches[row], slopes, row=row, drop=as_trained or slopes is not None)
            except Exception as error:
                if not memory.is_out_of_memory(error):
                    raise
                failure = memory.forget_frames(error)
            else:
                if self._gradient is None:
                    self._gradient = gradient
                elif gradient is not None:
                    self._gradient += gradient
                row += 1
                self._has_released = False
                continue
            # Outside of the handler: while an error is handled, its frames hold on to the tensors that did not fit.
            self.batches[row : row + 1] = self._with_less(self.batches[row], failure, train=slopes is not None)

    def commit(self) -> None:
        """Add the gradient of the whole call to what has accumulated."""
        self._state.passes += 1
        if self._gradient is not None:
            self._state.optimizer.add(self._gradient)

    def logprobs(self) -> list[Floats]:
        """Of each datum's targets; 0 for those that were not wanted."""
        return [self._found[number] for number in range(len(self._data))]

    def output(self, loss: Loss) -> ForwardBackwardOutput:
        """What the call returns."""
        logprobs = self.logprobs()
        value, metrics, _ = loss(self._data, logprobs)
        return ForwardBackwardOutput(value, logprobs, metrics)

    def _read_row(self, batch: packing.MicroBatch, slopes: Slopes | None, *, row: int, drop: bool) -> Tensor | None:
        entries = Entries.of(batch, self._data, self._wanted)
        if not len(entries.token):
            self._found |= {member: self._spread(member, np.empty(0, np.float32)) for member in batch.members}
            return None
        if slopes is not None:
            self._state.check_room(batch)

        def slope_of(sorted_logprobs: Floats) -> Floats:
            assert slopes is not None
            logprobs = self._by_member(batch, entries, sorted_logprobs)
            by_member = dict(zip(batch.members, slopes(batch.members, logprobs), strict=True))
            slope = np.concatenate([by_member[member][self._wanted[member]] for member in batch.members])
            return slope[entries.order].astype(np.float32)

        job = RowJob(self._state, batch, entries, None if slopes is None else slope_of)
        self._state.read(job, row=row, drop=drop)
        assert job.logprobs is not None
        self._found |= dict(zip(batch.members, self._by_member(batch, entries, job.logprobs), strict=True))
        return job.gradient

    def _by_member(self, batch: packing.MicroBatch, entries: Entries, sorted_logprobs: Floats) -> list[Floats]:
        flat = np.empty_like(sorted_logprobs)
        flat[entries.order] = sorted_logprobs
        ends = np.cumsum([int(self._wanted[member].sum()) for member in batch.members])
        pieces = np.split(flat, ends[:-1])
        return [self._spread(member, piece) for member, piece in zip(batch.members, pieces, strict=True)]

    def _spread(self, member: int, values: Floats) -> Floats:
        spread = np.zeros(self._wanted[member].shape, np.float32)
        spread[self._wanted[member]] = values
        return spread

    def _with_less(
        self, batch: packing.MicroBatch, error: BaseException, *, train: bool
    ) -> Sequence[packing.MicroBatch]:
        """What to try in place of a row that did not fit."""
        state, tokens = self._state, len(batch.tokens)
        if state.release() and not self._has_released:
            self._has_released = True  # once for a row: samplers of other runs may continue to remember texts
            return [batch]
        if len(batch.members) == 1:
            if train and state.start_recomputing(tokens):
                return [batch]
            raise memory.too_little_memory("a sequence", tokens, state.base.device) from error
        state.fitting.tokens_at_once = -(-tokens // 2)
        get_logger(__name__).warning(
            "a row of %d tokens did not fit into memory and is split; from now on rows have %d tokens. Set "
            "backend.params.tokens_at_once to that to avoid it",
            tokens,
            state.fitting.tokens_at_once,
        )
        return self._halves(batch)

    def _is_known_not_to_fit(self, batch: packing.MicroBatch) -> bool:
        """A row that was packed before another one of its size turned out to be too large."""
        return len(batch.members) > 1 and len(batch.tokens) > self._state.fitting.tokens_at_once

    def _halves(self, batch: packing.MicroBatch) -> list[packing.MicroBatch]:
        return packing.split(batch, self._sequences, share=self._state.settings.share_prefixes)


def _all(datum: Datum) -> Mask:
    return np.ones(datum.target_tokens.shape, bool)


def _mask(datum: Datum) -> Mask:
    """Targets that a named loss looks at."""
    counted = datum.weights != 0
    return counted if datum.advantages is None else counted | (datum.advantages != 0)
