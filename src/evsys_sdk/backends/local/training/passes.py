"""A model in training: forward and backward passes with accumulated gradients, optimizer steps, and memory fallbacks.

One packed row at a time is computed and, for training, differentiated. The loss is a function of log-probabilities from
`backends.losses`, so it is the same on every backend; its gradient enters the model through the head.

If a row does not fit into memory, it is retried with less: first all caches are released, then the row is split, then
layers are recomputed. If nothing helps, the call fails without changing anything.
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
"""Share of an estimate that must be free, because estimates may be too high."""

type Slopes = Callable[[Sequence[int], Sequence[Floats]], Sequence[Floats]]
"""(indices of data, their log-probabilities) -> gradient of the loss with respect to the log-probabilities."""


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Settings of forward and backward passes."""

    tokens_at_once: int = 2048
    share_prefixes: bool = True
    dropout: float = 0.0
    recompute: Literal["auto", "always", "never"] = "auto"
    """Whether layers are recomputed in the backward pass."""
    recompute_from: int | None = None
    """With auto, rows of at least this many tokens are recomputed from the start."""
    bytes_per_token: tuple[int, int] = (0, 0)
    """Estimated bytes per token until the gradient is computed: without and with recomputation."""
    join: bool = False
    """Whether rows may be computed jointly with those of other runs on the base."""


@dataclass(slots=True)
class Fitting:
    """Limits of what fits into memory; passes that did not fit lower them."""

    tokens_at_once: int
    recompute_from: int | None
    """Rows of at least this many tokens are recomputed; None means no rows."""


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
        """Number of committed passes; part of the seed of dropout."""
        self.clock = Clock(base.turns)
        """Compute time since the last step."""
        self.replace(adapter)
        self._joiner = joiner_of(base) if settings.join and not settings.dropout and not adapter.has_experts else None
        if self._joiner is not None:
            self._joiner.enter(self)

    def close(self) -> None:
        """Leave joint passes, so that other runs on the base do not wait for this one."""
        if self._joiner is not None:
            self._joiner.leave(self)

    def replace(self, adapter: LoRAAdapter, moments: Mapping[str, Tensor] | None = None, steps: int = 0) -> None:
        """Replace the adapter, without a gradient, and with a new optimizer unless moments are given."""
        optimizer = AdapterOptimizer(adapter)
        if moments is not None:
            optimizer.restore(moments, steps)
        # Assign only after everything is allocated, because memory may run out before.
        self.adapter, self.optimizer, self.form = adapter, optimizer, hash(adapter.form)
        self.graphs = TrainingGraphs(self.base, adapter.parts(), optimizer.parameters)

    def forward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Compute the loss and the log-probabilities of all targets, without a gradient."""
        with self.clock:
            run = _Run(self, data, [_all(datum) for datum in data])
            run.read(None)
            return run.output(loss)

    def forward_backward(self, data: Sequence[Datum], loss: Loss) -> ForwardBackwardOutput:
        """Add the gradient of a loss that is a sum over data; score only targets with a weight or an advantage."""
        with self.clock:
            run = _Run(self, data, [_mask(datum) for datum in data])
            run.read(lambda members, logprobs: loss([data[member] for member in members], logprobs)[2])
            output = run.output(loss)
            run.commit()
        return output

    def backward(self, data: Sequence[Datum], slopes: Sequence[Floats]) -> ForwardBackwardOutput:
        """Add the gradient, given the gradient of the loss with respect to the log-probabilities."""
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
            # Two passes: only one row is in memory at a time, and the loss needs the log-probabilities of all.
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
        """Apply and reset the accumulated gradient; return metrics and the compute time since the last step."""
        with self.clock:
            if self.reduce is not None:
                self.reduce(self.optimizer.accumulated)
            if self.base.device.type == "cuda":  # wait before taking the lock, because other runs need it
                torch.cuda.current_stream(self.base.device).synchronize()
            with self.base.host:
                metrics = self.with_room("the optimizer step", lambda: self.optimizer.step(adam))
        return {**metrics, "time/compute_s": self.clock.take()}

    def graph_of(self, batch: packing.MicroBatch) -> PassGraph | None:
        """Return a captured pass for a row on a GPU; None if capturing is impossible or not worth it."""
        return None if self.settings.dropout or self.recomputes(batch) else self.graphs.find(batch)

    def recomputes(self, batch: packing.MicroBatch) -> bool:
        """Whether layers are recomputed for the gradient of a row."""
        return self.recomputes_from(len(batch.tokens))

    def recomputes_from(self, tokens: int) -> bool:
        """Whether layers are recomputed for a row of this many tokens."""
        start = self.fitting.recompute_from
        return start is not None and tokens >= start

    def read(self, job: RowJob, *, row: int, drop: bool) -> None:
        """Compute a row, jointly with rows of other runs if possible."""
        if self._joiner is not None and self._joiner.read(job):
            return
        dropout = self.settings.dropout if drop else 0.0
        read_alone(job, self.adapter.parts(dropout=dropout, generator=self.dropout_generator(row)))

    def check_room(self, batch: packing.MicroBatch) -> None:
        """Raise MemoryError if a row cannot fit on a CPU, because the system would kill the process."""
        needed = len(batch.tokens) * self.settings.bytes_per_token[self.recomputes(batch)]
        if self.base.device.type != "cpu" or needed < _WORTH_CHECKING:
            return
        free = memory.available_bytes(self.base.device)
        if free is not None and needed * _SURE > free:
            raise MemoryError(f"{len(batch.tokens)} tokens take about {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free")

    def start_recomputing(self, tokens: int) -> bool:
        """Recompute rows of at least this length from now on; return False if impossible or already done."""
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
        """Release all caches; return whether there were any."""
        held = bool(self.base.spaces) or self.graphs.held
        self.base.spaces.clear()
        self.graphs.forget()
        if self._joiner is not None:
            self._joiner.stacks.clear()
        memory.give_back_at_once(self.base.device)
        return memory.release_unused() or held

    def with_room[T](self, what: str, work: Callable[[], T]) -> T:
        """Call `work`, and retry once after releasing caches if it runs out of memory; it must be atomic."""
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
        """Return the random generator for one row of the current pass; None without dropout."""
        if not self.settings.dropout:
            return None
        # A pass has less than 2**20 rows, so every row of every pass has its own seed.
        seed = stream_of(self._seed, (self.passes << 20) + row)
        return torch.Generator(self.base.device).manual_seed(seed >> 1)  # generators of all devices take 63 bits


class _ReadTwice(Exception):
    """The loss needs the log-probabilities of all data, but the only row was split."""


class _Run:
    """One call: the rows to compute, their log-probabilities, and the gradient, which `commit` adds at the end."""

    def __init__(self, state: LocalTrainingState, data: Sequence[Datum], masks: Sequence[Mask]) -> None:
        self._state, self._data, self._masks = state, data, masks
        self._sequences = [datum.tokens for datum in data]
        with state.base.host:
            self.batches = packing.pack(
                self._sequences, budget=state.fitting.tokens_at_once, share=state.settings.share_prefixes
            )
        self._results: dict[int, Floats] = {}
        self._gradient: Tensor | None = None

    def read(self, slopes: Slopes | None, *, as_trained: bool = False) -> None:
        """Compute every row and, if `slopes` is given, its gradient; `as_trained` applies dropout without `slopes`."""
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
            # Outside of the handler, because a handled error keeps its frames and their tensors in memory.
            self.batches[row : row + 1] = self._with_less(self.batches[row], failure, train=slopes is not None)

    def commit(self) -> None:
        """Add the gradient of the call to the accumulated gradient."""
        self._state.passes += 1
        if self._gradient is not None:
            with self._state.base.host:
                self._state.optimizer.add(self._gradient)

    def logprobs(self) -> list[Floats]:
        """Return the log-probabilities of each datum's targets; 0 for targets that were not scored."""
        return [self._results[number] for number in range(len(self._data))]

    def output(self, loss: Loss) -> ForwardBackwardOutput:
        """Return loss, log-probabilities and metrics."""
        logprobs = self.logprobs()
        value, metrics, _ = loss(self._data, logprobs)
        return ForwardBackwardOutput(value, logprobs, metrics)

    def _read_row(self, batch: packing.MicroBatch, slopes: Slopes | None, *, row: int, drop: bool) -> Tensor | None:
        with self._state.base.host:
            entries = Entries.of(batch, self._data, self._masks)
        if not len(entries.token):
            self._results |= {member: self._spread(member, np.empty(0, np.float32)) for member in batch.members}
            return None
        if slopes is not None:
            self._state.check_room(batch)

        def slope_of(sorted_logprobs: Floats) -> Floats:
            assert slopes is not None
            logprobs = self._by_member(batch, entries, sorted_logprobs)
            by_member = dict(zip(batch.members, slopes(batch.members, logprobs), strict=True))
            slope = np.concatenate([by_member[member][self._masks[member]] for member in batch.members])
            return slope[entries.order].astype(np.float32)

        job = RowJob(self._state, batch, entries, None if slopes is None else slope_of)
        self._state.read(job, row=row, drop=drop)
        assert job.logprobs is not None
        self._results |= dict(zip(batch.members, self._by_member(batch, entries, job.logprobs), strict=True))
        return job.gradient

    def _by_member(self, batch: packing.MicroBatch, entries: Entries, sorted_logprobs: Floats) -> list[Floats]:
        flat = np.empty_like(sorted_logprobs)
        flat[entries.order] = sorted_logprobs
        ends = np.cumsum([int(self._masks[member].sum()) for member in batch.members])
        pieces = np.split(flat, ends[:-1])
        return [self._spread(member, piece) for member, piece in zip(batch.members, pieces, strict=True)]

    def _spread(self, member: int, values: Floats) -> Floats:
        spread = np.zeros(self._masks[member].shape, np.float32)
        spread[self._masks[member]] = values
        return spread

    def _with_less(
        self, batch: packing.MicroBatch, error: BaseException, *, train: bool
    ) -> Sequence[packing.MicroBatch]:
        """Return the rows to compute in place of a row that did not fit."""
        state, tokens = self._state, len(batch.tokens)
        if state.release() and not self._has_released:
            self._has_released = True  # once per row, because samplers of other runs may fill their caches again
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
        """Whether a row was packed before the limit was lowered below its size."""
        return len(batch.members) > 1 and len(batch.tokens) > self._state.fitting.tokens_at_once

    def _halves(self, batch: packing.MicroBatch) -> list[packing.MicroBatch]:
        return packing.split(batch, self._sequences, share=self._state.settings.share_prefixes)


def _all(datum: Datum) -> Mask:
    return np.ones(datum.target_tokens.shape, bool)


def _mask(datum: Datum) -> Mask:
    """Return the targets that have a weight or an advantage."""
    counted = datum.weights != 0
    return counted if datum.advantages is None else counted | (datum.advantages != 0)
