"""Several recipes in sequence, each starting from the previous one's weights, e.g. SFT then DPO."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from ..config import AlgorithmConfig, DataConfig
from ..config.base import MisplacedValue, Name, Strict
from ..config.fields import searched
from ..config.run import refuse_repeated_names
from ..protocols import AlgorithmTraits, RunContext, RunResult
from ..training.services import services_of
from .stages import Stage, stage_algorithm, stage_traits, train_stages


class ComboPhase(AlgorithmConfig):
    """One recipe of the chain."""

    name: Name | None = None
    """Label of the phase; by default its position and kind."""
    data: DataConfig | None = None
    """Rows of this phase; by default those of the run."""


class Combo:
    """Recipes in sequence, each continuing from the previous one's weights."""

    name: ClassVar[str] = "combo"

    class Config(Strict):
        """Parameters of `combo`."""

        phases: list[ComboPhase] = Field(min_length=1)
        """The recipes, in order."""
        lora_rank: int = Field(default=32, ge=1, le=1024, json_schema_extra=searched(scale="log"))
        """Rank of the adapter that all phases train."""

        @model_validator(mode="after")
        def _phases_fit_together(self) -> Self:
            refuse_repeated_names(self.labels, "phases")
            for index, phase in enumerate(self.phases):
                if "lora_rank" in phase.params:
                    message = "all phases train one adapter. Set lora_rank next to phases, not inside one."
                    raise MisplacedValue(message, "phases", index, "params", "lora_rank")
            return self

        @property
        def labels(self) -> list[str]:
            """The name of each phase in the record."""
            return [phase.name or f"phase{index}_{phase.kind}" for index, phase in enumerate(self.phases)]

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self.stages = [
            stage_algorithm(phase.kind, phase.params, path=f"algorithm.params.phases[{index}].kind")
            for index, phase in enumerate(self.cfg.phases)
        ]

    def traits(self) -> AlgorithmTraits:
        """The traits of all phases together."""
        return stage_traits(self.stages, lora_rank=self.cfg.lora_rank)

    def train(self, ctx: RunContext) -> RunResult:
        """Train all phases in order."""
        load_rows, run_rows = services_of(ctx).load_rows, ctx.extras["train_rows"]
        rows = [load_rows(phase.data) if phase.data else run_rows for phase in self.cfg.phases]
        return train_stages(ctx, [Stage(*stage) for stage in zip(self.cfg.labels, self.stages, rows, strict=True)])
