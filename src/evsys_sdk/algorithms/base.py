"""The base of all recipes: hyperparameters with good defaults, and the plumbing around `build_batch`.

A new algorithm overrides `build_batch(step_idx)`; optionally `setup` (once, before the first step, with the stage's
initial weights), `step_metrics`, and `steps_for` if it does not iterate over epochs. The batch it returns names the
loss.

    @register_algorithm("focal_sft")
    class FocalSFT(SFT):
        async def build_batch(self, step_idx):
            batch = await super().build_batch(step_idx)
            batch.loss_fn = focal_loss
            return batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from ..config.base import Strict
from ..config.fields import NOT_SEARCHED, searched
from ..protocols import AlgorithmTraits
from ..training.batch import BatchOrder, Schedule, ScheduleKind, TrainingBatch

if TYPE_CHECKING:
    from ..backends.client import ForwardBackwardOutput, TrainingClient
    from ..inference.renderer import Renderer
    from ..protocols import Row, RunContext, RunResult
    from ..training.loop import LoopSettings
    from ..training.services import RunServices

_BATCHES_PLANNED = 32
"""Batches built to estimate the length of a step."""


class KeepCheckpoints(Strict):
    """Which checkpoints keep their weights; the metrics of the others stay in the record."""

    last: int = Field(default=1, ge=1)
    """Number of newest checkpoints; an interrupted run continues from the last one."""
    best: int = Field(default=1, ge=0)
    """Number of best checkpoints by the selection metric."""


class TrainingConfig(Strict):
    """Hyperparameters of every recipe; the defaults should give a good run."""

    learning_rate: float | None = Field(default=None, gt=0, le=1, json_schema_extra=searched(scale="log"))
    """Peak learning rate; by default suggested for the model, for a LoRA adapter of any rank."""
    num_epochs: int = Field(default=1, ge=1, json_schema_extra=searched(scale="log", when={"max_steps": [None]}))
    """Passes over the data; ignored when `max_steps` is set."""
    max_steps: int | None = Field(default=None, ge=1, json_schema_extra=searched(scale="log"))
    """Train exactly this many steps, for as many epochs as needed."""
    batch_size: int = Field(default=16, ge=1, json_schema_extra=searched(scale="log"))
    """Examples per optimiser step."""
    lora_rank: int = Field(default=32, ge=1, le=1024, json_schema_extra=searched(scale="log"))
    """Rank of the adapter."""
    lr_schedule: ScheduleKind = "linear"
    """Decay of the learning rate after the warm-up: none, linear or cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up to the peak."""
    weight_decay: float = Field(default=0.0, ge=0, json_schema_extra=searched(scale="log"))
    """Decoupled weight decay."""
    grad_clip_norm: float = Field(default=1.0, ge=0, json_schema_extra=searched(scale="log"))
    """Maximum gradient norm; 0 disables clipping."""
    save_every: int | None = Field(default=50, ge=1, json_schema_extra=NOT_SEARCHED)
    """Write a checkpoint every this many steps; the last step is always saved."""
    save_at_fractions: list[Annotated[float, Field(gt=0, le=1)]] = []
    """Also write checkpoints at these fractions of the run, e.g. [0.25, 0.5]."""
    keep_checkpoints: KeepCheckpoints | None = Field(default=None, json_schema_extra=NOT_SEARCHED)
    """Delete the weights of all checkpoints but the last and the best few; by default keep all."""
    eval_every: int | None = Field(default=None, ge=1, json_schema_extra=NOT_SEARCHED)
    """Score the live model on `eval.eval_data` every this many steps."""
    selection_metric: str | None = None
    """Metric that selects the best checkpoint; by default that of a validation set, else the recipe's."""
    selection_mode: Literal["min", "max"] | None = Field(default=None, json_schema_extra=NOT_SEARCHED)
    """Whether lower or higher is better; by default the recipe's choice, else lower for losses, higher otherwise."""

    @field_validator("selection_metric")
    @classmethod
    def _is_not_measured_on_training_rows(cls, metric: str | None) -> str | None:
        if metric is not None and metric.startswith("train_fit/"):
            raise ValueError(
                "scores on training rows must not choose a checkpoint. Add eval.eval_data and use eval/..."
            )
        return metric


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """The planned work of a recipe, without training."""

    steps: int
    tokens_trained: float
    """Tokens of rows in all steps, by the tokenizer of the bound client."""
    step_lengths: tuple[int, ...]
    """Sequence lengths of a typical step."""
    answers_sampled: int = 0
    answers_trained: int = 0
    """Larger than `answers_sampled` if several steps train on the same answers."""
    answer_tokens: int = 0
    """Maximum length of an answer, in the model's own tokens."""
    note: str = ""
    """What the numbers exclude."""


class BaseAlgorithm:
    """Base of recipes: handles the plumbing, leaves the maths to `build_batch`."""

    name: ClassVar[str] = "base"
    Config: ClassVar[type[TrainingConfig]] = TrainingConfig
    pinned_backend: ClassVar[str | None] = None
    """The required backend, whatever the run names."""
    selection_metric: ClassVar[str] = "loss"
    """Selects the best checkpoint unless the config or a validation set does; logged with each step ..."""
    selection_mode: ClassVar[Literal["min", "max"]] = "min"
    """... and whether lower or higher is better."""
    builds_ahead: bool = True
    """Whether batches may be built before earlier steps have finished; False for on-policy recipes."""

    client: TrainingClient
    renderer: Renderer
    rows: Sequence[Row]
    seed: int
    run_dir: Path
    services: RunServices
    """Further services of the run, e.g. `verify` for rollouts."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def bind(
        self,
        *,
        client: TrainingClient,
        renderer: Renderer,
        rows: Sequence[Row],
        seed: int,
        run_dir: Path,
        services: RunServices,
    ) -> None:
        """Receive the services of the run; called once, before `setup`."""
        self.client, self.renderer, self.rows, self.seed, self.run_dir = client, renderer, rows, seed, run_dir
        self.services = services

    async def setup(self) -> None:
        """Prepare for `build_batch`. The client still has the initial weights."""

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        """The data and the loss of one step: the algorithm."""
        raise NotImplementedError(f"algorithm '{self.name}' must define build_batch(step_idx)")

    def step_metrics(self, step_idx: int, batch: TrainingBatch, output: ForwardBackwardOutput) -> Mapping[str, float]:
        """Additional metrics of a finished step."""
        return {}

    def n_examples(self) -> int:
        """Number of examples per epoch."""
        return len(self.rows)

    def order(self) -> BatchOrder:
        """The order of examples."""
        return BatchOrder(self.n_examples(), self.cfg.batch_size, self.seed)

    def steps_for(self, n_examples: int) -> int:
        """Number of steps for this many examples."""
        return (
            self.cfg.max_steps or BatchOrder(n_examples, self.cfg.batch_size, 0).steps_per_epoch * self.cfg.num_epochs
        )

    def total_steps(self) -> int:
        """Number of steps; known after `setup`."""
        return self.steps_for(self.n_examples())

    @property
    def uses_every_row(self) -> bool:
        """Whether `setup` turns every row into exactly one example."""
        return True

    def planned_steps(self, rows: Sequence[Row]) -> int | None:
        """Expected steps before `setup`; None if `setup` may skip rows."""
        return self.steps_for(len(rows)) if self.uses_every_row else self.cfg.max_steps

    async def plan(self, n_rows: int) -> PlannedWork:
        """The planned work on this many rows, extrapolated from the bound rows."""
        await self.setup()
        steps = self.steps_for(max(round(self.n_examples() * n_rows / max(len(self.rows), 1)), 1))
        within = max(self.order().steps_per_epoch, 1)
        built = min(within, _BATCHES_PLANNED)
        # Spread over an epoch, because batches differ in size and length.
        batches = [await self.build_batch(at * within // built) for at in range(built)]
        lengths = [[len(datum.tokens) for datum in batch.data] for batch in batches]
        return PlannedWork(steps, steps * fmean(map(sum, lengths)), tuple(lengths[0]))

    def traits(self) -> AlgorithmTraits:
        """The recipe's properties, known before training."""
        return AlgorithmTraits(
            pinned_backend=self.pinned_backend,
            lora_rank=self.cfg.lora_rank,
            max_steps=self.cfg.max_steps,
            planned_steps=self.planned_steps,
            selection_metric=self.selection_metric,
            selection_mode=self.selection_mode,
        )

    def settings(self) -> LoopSettings:
        """The loop's settings from the hyperparameters."""
        from ..backends.client import AdamParams
        from ..training.loop import LoopSettings

        cfg = self.cfg
        return LoopSettings(
            total_steps=self.total_steps(),
            learning_rate=cfg.learning_rate or self.client.capabilities.suggested_learning_rate,
            schedule=Schedule(cfg.lr_schedule, cfg.warmup_steps),
            adam=AdamParams(weight_decay=cfg.weight_decay, grad_clip_norm=cfg.grad_clip_norm),
            save_every=cfg.save_every,
            save_at_fractions=tuple(cfg.save_at_fractions),
            eval_every=cfg.eval_every,
        )

    def close(self) -> None:
        """Release what `setup` started; called once, for every outcome."""

    def state(self) -> dict[str, Any]:
        """Data cursor and random state; empty if batches are a function of the step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""

    def train(self, ctx: RunContext) -> RunResult:
        """Train one run from its rows to its final checkpoint."""
        from .stages import Stage, train_stages

        return train_stages(ctx, [Stage(self.name, self, ctx.extras["train_rows"])])
