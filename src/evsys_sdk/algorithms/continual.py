"""The continual modifier: one recipe over an ordered list of datasets, and what is left of the earlier ones.

After each stage the model is scored on that stage's held-out rows and on those of every stage before it. The scores
form the retention matrix: row = after which stage, column = on which stage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from ..config import ContinualStage, RunConfig
from ..protocols import RunContext, RunResult
from ..registry import get_algorithm
from .stages import Stage, train_stages

type ScoreStage = Callable[[ContinualStage, int], Awaitable[Mapping[str, float]]]


class Continual:
    """A recipe applied stage by stage."""

    name: ClassVar[str] = "continual"

    def __init__(self, run: RunConfig) -> None:
        assert run.continual is not None
        self._stages = run.continual.stages
        recipe = get_algorithm(run.algorithm.kind)
        self._algorithms = [recipe(**{**run.algorithm.params, **stage.params}) for stage in self._stages]

    def train(self, ctx: RunContext) -> RunResult:
        """Train all stages in order and fill the retention matrix."""
        stages = [
            Stage(stage.name, algorithm, ctx.extras["load_rows"](stage.data), at_end=self._scorer(ctx, index))
            for index, (stage, algorithm) in enumerate(zip(self._stages, self._algorithms, strict=True))
        ]
        result = train_stages(ctx, stages)
        result.extras["retention"] = self._matrix(ctx)
        return result

    def _scorer(self, ctx: RunContext, index: int) -> Callable[[int], Awaitable[Mapping[str, float]]]:
        score: ScoreStage | None = ctx.extras.get("score_stage")
        seen = self._stages[: index + 1]

        async def score_all(step: int) -> Mapping[str, float]:
            found: dict[str, float] = {}
            for stage in seen:
                if score is not None and stage.eval_data is not None:
                    metrics = await score(stage, step)
                    found |= {
                        f"retention/{self._stages[index].name}/{stage.name}/{key}": value
                        for key, value in metrics.items()
                    }
            return found

        return score_all

    def _matrix(self, ctx: RunContext) -> dict[str, dict[str, dict[str, float]]]:
        """after stage -> on stage -> metric -> value, from the checkpoints of the run."""
        from ..training.checkpoints import CheckpointLog

        matrix: dict[str, dict[str, dict[str, float]]] = {}
        for checkpoint in CheckpointLog.in_dir(ctx.output_dir).read():
            for key, value in checkpoint.metrics.items():
                if key.startswith("retention/"):
                    _, after, on, metric = key.split("/", 3)
                    matrix.setdefault(after, {}).setdefault(on, {})[metric] = value
        return matrix
