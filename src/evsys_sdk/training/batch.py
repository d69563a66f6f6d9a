"""What one optimiser step consumes, and who produces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..backends.client import ForwardBackwardOutput
    from ..backends.datum import Datum
    from ..backends.losses import LossCallable
    from ..rollouts.rollout import Rollout


@dataclass(slots=True)
class TrainingBatch:
    """The data of one step and the loss to apply to it."""

    data: Sequence[Datum]
    loss_fn: str | LossCallable = "cross_entropy"
    """Name of a loss the backend knows, or a function of the data and their log-probabilities."""
    loss_fn_config: Mapping[str, Any] | None = None
    """Parameters of a named loss, e.g. clip thresholds."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Known before the step, logged with it."""
    rollouts: Sequence[Rollout] = ()
    """The attempts it was made from, where there are some, each once: they are recorded with this step."""
    empty_because: str = ""
    """Why there is nothing to learn from, where the recipe knows."""


@runtime_checkable
class StepBuilder(Protocol):
    """Builds the batch of each step. This is the algorithm."""

    async def build_batch(self, step_idx: int) -> TrainingBatch: ...

    def step_metrics(self, step_idx: int, batch: TrainingBatch, output: ForwardBackwardOutput) -> Mapping[str, float]:
        """More metrics of a finished step."""
        ...

    @property
    def builds_ahead(self) -> bool:
        """Whether a batch may be built before the previous step has finished (never for on-policy recipes)."""
        ...

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here, as JSON-like data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        ...
