"""The batch of one optimiser step, its order and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..backends.client import OptimStepOutput

if TYPE_CHECKING:
    import numpy as np

    from ..backends.client import AdamParams, ForwardBackwardOutput, TrainingClient
    from ..backends.datum import Datum
    from ..backends.future import Operation
    from ..backends.losses import LossCallable
    from ..rollouts.rollout import Rollout


@dataclass(slots=True)
class TrainingBatch:
    """The data of one step and the loss to apply to it."""

    data: Sequence[Datum]
    loss_fn: str | LossCallable = "cross_entropy"
    """Name of a backend's loss, or a function of the data and their log-probabilities."""
    loss_fn_config: Mapping[str, Any] | None = None
    """Parameters of a named loss, e.g. clip thresholds."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics known before the step, logged with it."""
    rollouts: Sequence[Rollout] = ()
    """The rollouts it was built from, each once; recorded with this step."""
    empty_because: str = ""
    """Why the batch has no data, if the recipe knows."""


def submit_step(
    client: TrainingClient, batch: TrainingBatch, adam: AdamParams | None
) -> tuple[Operation[ForwardBackwardOutput], Operation[OptimStepOutput]]:
    """Submit gradient and optimiser step together, so that the backend starts while the caller continues.

    Without `adam`, the gradient is only accumulated.
    """
    if isinstance(batch.loss_fn, str):
        backward = client.forward_backward(batch.data, batch.loss_fn, batch.loss_fn_config)
    else:
        backward = client.forward_backward_custom(batch.data, batch.loss_fn)
    if adam is None:
        return backward, backward.then(lambda _: OptimStepOutput())
    return backward, client.optim_step(adam)


@runtime_checkable
class StepBuilder(Protocol):
    """Builds the batch of each step: the algorithm."""

    async def build_batch(self, step_idx: int) -> TrainingBatch: ...

    def step_metrics(self, step_idx: int, batch: TrainingBatch, output: ForwardBackwardOutput) -> Mapping[str, float]:
        """Additional metrics of a finished step."""
        ...

    @property
    def builds_ahead(self) -> bool:
        """Whether a batch may be built before the previous step has finished (never for on-policy recipes)."""
        ...

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON-like data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


# The order of examples is a function of seed and step, so that a resumed run has the same batches.


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Shuffled epochs split into batches; the last batch of an epoch may be smaller."""

    n_examples: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.n_examples // self.batch_size)

    def indices(self, step: int) -> list[int]:
        """Indices of the examples in the batch of `step`."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return [
            int(index) for index in _epoch_order(self.seed, epoch, self.n_examples)[start : start + self.batch_size]
        ]

    def epoch(self, step: int) -> float:
        """Number of epochs after `step`, as a fraction."""
        return (step + 1) / self.steps_per_epoch


# Cached: every step of an epoch needs the same permutation of all data.
@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, n_examples: int) -> np.ndarray:
    import numpy as np

    # A pair, not a sum: epoch 1 of seed 0 must differ from epoch 0 of seed 1.
    return np.random.default_rng([seed, epoch]).permutation(n_examples)


# Learning-rate schedules: a factor between 0 and 1 per step, applied to the peak rate.

type ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up from zero, then constant, or a decay to `final_fraction` of the peak at the last step."""

    kind: ScheduleKind = "linear"
    warmup_steps: int = 0
    final_fraction: float = 0.0

    def factor(self, step: int, total_steps: int) -> float:
        """Factor of the peak rate at `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        # The first step has the peak rate, and no step the end of the decay, which would waste it at rate 0.
        progress = (step - self.warmup_steps) / max(total_steps - self.warmup_steps, 1)
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.final_fraction + (1.0 - self.final_fraction) * shape
