"""Several recipes in a row, each starting from the weights of the one before: SFT then DPO, for instance."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ..config import AlgorithmConfig, DataConfig
from ..config.base import Name, Strict
from ..protocols import RunContext, RunResult
from ..registry import get_algorithm
from .stages import Stage, train_stages


class ComboPhase(AlgorithmConfig):
    """One recipe of the chain."""

    name: Name | None = None
    """Label of the phase; by default its position and kind."""
    data: DataConfig | None = None
    """Rows of this phase; by default those of the run."""


class Combo:
    """Phases that chain weights: the output of one is where the next begins."""

    name: ClassVar[str] = "combo"

    class Config(Strict):
        """Parameters of `combo`."""

        phases: list[ComboPhase] = Field(min_length=1)
        """The recipes, in order."""
        lora_rank: int = Field(default=32, ge=1, le=1024)
        """Rank of the adapter that all phases train."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._algorithms = [get_algorithm(phase.kind)(**phase.params) for phase in self.cfg.phases]

    def train(self, ctx: RunContext) -> RunResult:
        """Train all phases in order."""
        stages = [
            Stage(
                phase.name or f"phase{index}_{phase.kind}",
                algorithm,
                ctx.extras["load_rows"](phase.data) if phase.data else ctx.extras["train_rows"],
            )
            for index, (phase, algorithm) in enumerate(zip(self.cfg.phases, self._algorithms, strict=True))
        ]
        return train_stages(ctx, stages)
