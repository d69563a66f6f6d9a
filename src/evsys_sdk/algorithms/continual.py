"""Continual learning: one recipe over a sequence of datasets, with retention scores.

After each stage, the model is scored on the held-out rows of this and all earlier stages. The scores form the retention
matrix: row = after which stage, column = on which stage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

from ..config import RunConfig
from ..errors import ConfigError, Problem
from ..protocols import AlgorithmTraits, RunContext, RunResult
from ..record.run_files.checkpoints import Checkpoint, CheckpointLog
from ..training.services import RunServices, services_of
from .stages import Stage, stage_algorithm, stage_traits, train_stages


class Continual:
    """A recipe applied stage by stage."""

    name: ClassVar[str] = "continual"

    def __init__(self, run: RunConfig) -> None:
        assert run.continual is not None
        self._stages = run.continual.stages
        self.stages = [stage_algorithm(spec.kind, spec.params, path="algorithm.kind") for spec in run.stages()]
        self.cfg = self.stages[0].cfg
        if any(algorithm.cfg.lora_rank != self.cfg.lora_rank for algorithm in self.stages):
            hint = "All stages train one adapter: set lora_rank in algorithm.params."
            raise ConfigError(Problem("the stages have adapters of different rank", "continual.stages", hint=hint))

    def traits(self) -> AlgorithmTraits:
        """The traits of all stages together."""
        return stage_traits(self.stages, lora_rank=self.cfg.lora_rank)

    def train(self, ctx: RunContext) -> RunResult:
        """Train all stages in order and fill the retention matrix."""
        services = services_of(ctx)
        stages = [
            Stage(stage.name, algorithm, services.load_rows(stage.data), at_end=self._scorer(services, index))
            for index, (stage, algorithm) in enumerate(zip(self._stages, self.stages, strict=True))
        ]
        result = train_stages(ctx, stages)
        # From the log, which also has the scores of earlier attempts of a resumed run.
        trained = [checkpoint for checkpoint in CheckpointLog.in_dir(ctx.output_dir).read() if checkpoint.final]
        result.notes.retention = retention_matrix(trained)
        if result.status == "completed" and services.score_stage is not None:
            result.notes.unscored = self._explain_missing_scores(services, trained)
        return result

    def _scorer(self, services: RunServices, index: int) -> Callable[[int], Awaitable[Mapping[str, float]]]:
        score, stages_so_far = services.score_stage, self._stages[: index + 1]

        async def score_all(step: int) -> Mapping[str, float]:
            scores: dict[str, float] = {}
            for stage in stages_so_far:
                if score is not None and stage.eval_data is not None:
                    metrics = await score(stage, step)
                    scores |= {
                        f"retention/{self._stages[index].name}/{stage.name}/{key}": value
                        for key, value in metrics.items()
                    }
            return scores

        return score_all

    def _explain_missing_scores(self, services: RunServices, trained: Sequence[Checkpoint]) -> str | None:
        """Why a run with metrics lacks scores."""
        if not any(stage.eval_data for stage in self._stages) and services.evaluate is None:
            return "eval names metrics, but no stage has eval_data to compute them on"
        missing = self._missing_entries(trained)
        return f"the retention matrix has no score for {', '.join(missing)}" if missing else None

    def _missing_entries(self, trained: Sequence[Checkpoint]) -> list[str]:
        """Entries of the matrix without a score, because a scoring failed."""
        return [
            f"{stage.name} after {self._stages[checkpoint.stage].name}"
            for checkpoint in trained
            for stage in self._stages[: checkpoint.stage + 1]
            if stage.eval_data is not None
            and not any(
                key.startswith(f"retention/{self._stages[checkpoint.stage].name}/{stage.name}/")
                for key in checkpoint.metrics
            )
        ]


def retention_matrix(checkpoints: Sequence[Checkpoint]) -> dict[str, dict[str, dict[str, float]]]:
    """after stage -> on stage -> metric -> value, as recorded with the last checkpoint of each stage."""
    matrix: dict[str, dict[str, dict[str, float]]] = {}
    for checkpoint in checkpoints:
        for key, value in checkpoint.metrics.items():
            if key.startswith("retention/"):
                _, after, on, metric = key.split("/", 3)
                matrix.setdefault(after, {}).setdefault(on, {})[metric] = value
    return matrix
