"""Training in stages: one for a plain recipe, several for `combo` and `continual`.

Each stage begins with the weights of the one before and a fresh optimizer. All stages share one `checkpoints.jsonl`, so
a killed run goes on in the stage and at the step it had reached. `setup` always sees the weights its stage began with,
also when the run resumes: a reference model must not drift.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import BackendError, TrainingError
from ..protocols import Row, RunContext, RunResult
from ..training.callback import Observers, RunControl
from ..training.checkpoints import Checkpoint, CheckpointLog
from ..training.loop import TrainingLoop

if TYPE_CHECKING:
    from ..backends.client import TrainingClient
    from ..inference.renderer import Renderer
    from .base import BaseAlgorithm

type Score = Callable[[int], Awaitable[Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One recipe on one set of rows."""

    name: str
    algorithm: BaseAlgorithm
    rows: Sequence[Row]
    at_end: Score | None = None
    """Scores the model when the stage is finished; the metrics go into its final checkpoint."""


def train_stages(ctx: RunContext, stages: Sequence[Stage]) -> RunResult:
    """Train all stages in order and say how it went. Works inside and outside of a running event loop."""
    return _run_blocking(lambda: _StagedRun.of(ctx, stages).train())


@dataclass(slots=True)
class _StagedRun:
    ctx: RunContext
    stages: Sequence[Stage]
    client: TrainingClient
    renderer: Renderer
    checkpoints: CheckpointLog
    observers: Observers
    control: RunControl
    resumed_from: Checkpoint | None = None
    resumed_at_end: bool = False
    """Whether training had finished before: only its weights are needed, for scoring."""
    finals: list[Checkpoint] = field(default_factory=list[Checkpoint])

    @classmethod
    def of(cls, ctx: RunContext, stages: Sequence[Stage]) -> _StagedRun:
        extras = ctx.extras
        checkpoints = CheckpointLog.in_dir(ctx.output_dir)
        run = cls(
            ctx=ctx,
            stages=stages,
            client=_training_client(ctx),
            renderer=extras["renderer"],
            checkpoints=checkpoints,
            observers=extras["observers"],
            control=extras["control"],
        )
        if any(stage.rows is not extras["train_rows"] for stage in stages):
            run.observers.on_data([row for stage in stages for row in stage.rows])
        if extras.get("resume"):
            checkpoints.repair()
            run._take_up(checkpoints.read())
        return run

    async def train(self) -> RunResult:
        offset = 0
        for index, stage in enumerate(self.stages):
            if index < len(self.finals):
                offset = self.finals[index].next_step
                continue
            end = await self._train_stage(index, stage, offset)
            offset = end.next_step
            self.finals.append(end)
            if self.control.interrupted:
                return self._result()
        if self.resumed_at_end:
            await self.client.load_state(self.finals[-1].state, with_optimizer=True)
        return self._result()

    async def _train_stage(self, index: int, stage: Stage, offset: int) -> Checkpoint:
        algorithm, client = stage.algorithm, self.client
        if index > 0:
            await client.load_state(self.finals[index - 1].state, with_optimizer=False)
        algorithm.bind(
            client=client,
            renderer=self.renderer,
            rows=stage.rows,
            seed=self.ctx.extras["seed"],
            run_dir=self.ctx.output_dir / stage.name if len(self.stages) > 1 else self.ctx.output_dir,
            services=self.ctx.extras,
        )
        try:
            return await self._set_up_and_run(index, stage, offset)
        finally:
            algorithm.close()

    async def _set_up_and_run(self, index: int, stage: Stage, offset: int) -> Checkpoint:
        algorithm = stage.algorithm
        await algorithm.setup()
        loop = TrainingLoop(
            client=self.client,
            builder=algorithm,
            settings=algorithm.settings(),
            checkpoints=self.checkpoints,
            observers=self.observers,
            control=self.control,
            evaluate=self.ctx.extras.get("evaluate"),
            at_end=stage.at_end,
            stage=index,
            offset=offset,
            attempt=self.ctx.extras.get("attempt", 1),
            renderer=self.renderer.name,
        )
        start = await self._restore(loop, index, offset)
        return await loop.run(start=start)

    async def _restore(self, loop: TrainingLoop, stage: int, offset: int) -> int:
        """Bring the stage back to the checkpoint it resumes from; returns its first step."""
        checkpoint = self.resumed_from
        if checkpoint is None or checkpoint.stage != stage:
            return 0
        await self.client.load_state(checkpoint.state, with_optimizer=True)
        loop.builder.restore(checkpoint.builder)
        loop.watchdog.restore(checkpoint.watchdog)
        loop.last_metrics, loop.last_saved = dict(checkpoint.metrics), checkpoint
        return checkpoint.next_step - offset

    def _take_up(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Find out which stages are finished and where the current one goes on."""
        if not checkpoints:
            return
        last = checkpoints[-1]
        if last.renderer != self.renderer.name:
            raise TrainingError(
                f"the run was trained with the renderer '{last.renderer}' and would resume with "
                f"'{self.renderer.name}'. Set model.renderer_name back, or start a new run."
            )
        self.finals = [checkpoint for checkpoint in checkpoints if checkpoint.final]
        self.observers.restore(last.observers)
        self.resumed_from = None if last.final else last
        self.resumed_at_end = len(self.finals) == len(self.stages)

    def _result(self) -> RunResult:
        last = self.finals[-1]
        interrupted = self.control.interrupted
        best, metric = self._best()
        artifacts = {"final_checkpoint": last.state, "final_sampler": last.sampler}
        if best is not None:
            artifacts |= {"best_checkpoint": best.state, "best_sampler": best.sampler}
        extras: dict[str, Any] = {"renderer": self.renderer.name, "selection_metric": metric}
        if last.stop_reason:
            extras["stop_reason"] = last.stop_reason
        metrics = {_final_name(key): value for key, value in last.metrics.items()}
        metrics["steps"] = float(last.next_step)
        return RunResult(
            run_id=self.ctx.run_id,
            status="cancelled" if interrupted else "completed",
            metrics=metrics,
            artifacts=artifacts,
            error=last.stop_reason if interrupted else None,
            extras=extras,
        )

    def _best(self) -> tuple[Checkpoint | None, str]:
        """The checkpoint that the selection metric prefers, among those of the last stage."""
        cfg = self.stages[-1].algorithm.cfg
        metric: str = cfg.selection_metric or self.ctx.extras.get("selection_metric") or "loss"
        mode: Literal["min", "max"] = cfg.selection_mode or ("min" if "loss" in metric else "max")
        return self.checkpoints.best(metric, mode, stage=len(self.stages) - 1), metric


def _training_client(ctx: RunContext) -> TrainingClient:
    client = ctx.extras["backend_handles"].get("training_client")
    if client is None:
        raise BackendError(
            f"the backend '{ctx.backend.name}' gives no training_client, which this recipe trains through. "
            "Return one from prepare(), or choose another backend."
        )
    return client


def _final_name(key: str) -> str:
    """How a metric of the last step is called in the result of the run."""
    return f"final_{key}" if key in ("loss", "grad_norm") else key


def _run_blocking(train: Callable[[], Awaitable[RunResult]]) -> RunResult:
    """Run a coroutine to its end; in a notebook, where a loop already runs, on a thread of its own."""

    async def call() -> RunResult:
        return await train()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    outcome: list[RunResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(call()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="evsys-train")
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
