"""Training in stages: one for a plain recipe, several for `combo` and `continual`.

Each stage starts with the previous stage's weights and a new optimizer. All stages share one `checkpoints.jsonl`, so a
killed run resumes at its stage and step. `setup` always has the stage's initial weights, even on resume, so that
reference models do not drift.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import BackendError, ConfigError, Problem, TrainingError, closest
from ..log import get_logger
from ..protocols import Algorithm, AlgorithmTraits, Row, RunContext, RunNotes, RunResult, traits_of
from ..record.run_files.checkpoints import Checkpoint, CheckpointLog
from ..registry import get_algorithm
from ..training.blocking import run_blocking
from ..training.callback import is_deadline_stop
from ..training.loop import TrainingLoop
from ..training.services import RunServices, services_of
from .base import BaseAlgorithm

if TYPE_CHECKING:
    from ..backends.client import TrainingClient
    from ..inference.renderer import Renderer

type Score = Callable[[int], Awaitable[Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One recipe on one set of rows."""

    name: str
    algorithm: BaseAlgorithm
    rows: Sequence[Row]
    at_end: Score | None = None
    """Scores the model after the stage; the metrics go into its final checkpoint."""


def train_stages(ctx: RunContext, stages: Sequence[Stage]) -> RunResult:
    """Train all stages in order and return the result. Works inside and outside a running event loop."""
    return run_blocking(lambda: StagedRun.of(ctx, stages).train())


def stage_algorithm(kind: str, params: Mapping[str, Any], *, path: str) -> BaseAlgorithm:
    """A recipe that can be one of several stages; `path` is its place in the config."""
    algorithm: object = get_algorithm(kind)(**params)
    if not isinstance(algorithm, BaseAlgorithm):
        hint = "Subclass BaseAlgorithm and define build_batch, or train it as a separate run."
        raise ConfigError(Problem("this algorithm has its own train() and cannot be a stage", path, kind, hint))
    return algorithm


def stage_traits(stages: Sequence[Algorithm], *, lora_rank: int) -> AlgorithmTraits:
    """The traits of several stages: one adapter, on the backend that a stage requires."""
    each = [traits_of(stage) for stage in stages]
    lengths = [traits.max_steps for traits in each if traits.max_steps is not None]
    return AlgorithmTraits(
        pinned_backend=next((traits.pinned_backend for traits in each if traits.pinned_backend), None),
        lora_rank=lora_rank,
        max_steps=sum(lengths) if len(lengths) == len(each) else None,
        stages=tuple(stages),
        # Benchmarks are scored after the last stage, in the last harness.
        rollouts=next((traits.rollouts for traits in reversed(each) if traits.rollouts), None),
        selection_metric=each[-1].selection_metric,
        selection_mode=each[-1].selection_mode,
    )


@dataclass(slots=True)
class StagedRun:
    """A run of stages: its resume point, loops and result."""

    ctx: RunContext
    stages: Sequence[Stage]
    client: TrainingClient
    renderer: Renderer
    checkpoints: CheckpointLog
    services: RunServices
    resumed_from: Checkpoint | None = None
    resumed_at_end: bool = False
    """Whether training had already finished: only its weights are needed, for scoring."""
    finals: list[Checkpoint] = field(default_factory=list[Checkpoint])

    @classmethod
    def of(cls, ctx: RunContext, stages: Sequence[Stage]) -> StagedRun:
        services, checkpoints = services_of(ctx), CheckpointLog.in_dir(ctx.output_dir)
        client, renderer = _model(ctx, services)
        run = cls(ctx, stages, client, renderer, checkpoints, services)
        # The runner has reported the run's own rows, but not those loaded by stages.
        if any(stage.rows is not ctx.extras["train_rows"] for stage in stages):
            services.observers.on_data([row for stage in stages for row in stage.rows])
        if services.resume:
            checkpoints.repair()
            run._resume_from(checkpoints.read())
        return run

    async def train(self) -> RunResult:
        offset = 0
        for index, stage in enumerate(self.stages):
            if self.resumed_at_end:
                break
            if index < len(self.finals):
                offset = self.finals[index].next_step
                continue
            control = self.services.control
            control.begin_stage(more=index + 1 < len(self.stages))
            end = await self._train_stage(index, stage, offset)
            offset = end.next_step
            self.finals.append(end)
            if control.stage_only:
                get_logger(__name__).info("stage '%s' ends early: %s", stage.name, control.stop_reason)
            elif control.stop_reason is not None:
                break  # a stop ends the run; later stages are reported as untrained
        return await self.finish()

    async def finish(self) -> RunResult:
        """The result; a run that had already ended gets its final weights loaded, for scoring."""
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
            seed=self.services.seed,
            run_dir=self.ctx.output_dir / "stages" / stage.name if len(self.stages) > 1 else self.ctx.output_dir,
            services=self.services,
        )
        try:
            return await self._set_up_and_run(index, stage, algorithm, offset)
        finally:
            algorithm.close()

    async def _set_up_and_run(self, index: int, stage: Stage, algorithm: BaseAlgorithm, offset: int) -> Checkpoint:
        await algorithm.setup()
        if algorithm.cfg.eval_every is not None and self.services.evaluate is None:
            get_logger(__name__).warning(
                "eval_every is set for '%s', but `eval` has nothing to score. Set eval.eval_data and metrics.",
                stage.name,
            )
        # After `setup`, which needs the stage's initial weights.
        loop, start = await self.open_loop(index, stage, algorithm, offset)
        return await loop.run(start=start)

    async def open_loop(
        self, index: int, stage: Stage, builder: BaseAlgorithm, offset: int = 0
    ) -> tuple[TrainingLoop, int]:
        """The loop of a stage, restored to its checkpoint, and its first step."""
        services = self.services
        loop = TrainingLoop(
            client=self.client,
            builder=builder,
            settings=builder.settings(),
            checkpoints=self.checkpoints,
            observers=services.observers,
            control=services.control,
            evaluate=services.evaluate,
            at_end=stage.at_end,
            scoring=services.scoring,
            stage=index,
            offset=offset,
            attempt=services.attempt,
            renderer=self.renderer.name,
            after_save=lambda: self._delete_old_weights(index),
        )
        if self.finals:
            loop.tokens |= self.finals[-1].tokens
        return loop, await self._restore(loop, index, offset)

    async def _restore(self, loop: TrainingLoop, stage: int, offset: int) -> int:
        """Restore the stage from its checkpoint; returns its first step."""
        checkpoint = self.resumed_from
        if checkpoint is None or checkpoint.stage != stage:
            return 0
        await self.client.load_state(checkpoint.state, with_optimizer=True)
        loop.builder.restore(checkpoint.builder)
        loop.watchdog.restore(checkpoint.watchdog)
        loop.last_metrics, loop.last_saved = dict(checkpoint.metrics), checkpoint
        loop.tokens |= checkpoint.tokens
        if checkpoint.scoring is not None and loop.scoring is not None:
            await loop.scoring.start_again(checkpoint.scoring, self.client)
        return checkpoint.next_step - offset

    def _resume_from(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Determine the finished stages and the checkpoint of the current one."""
        if not checkpoints:
            return
        last = checkpoints[-1]
        if last.renderer != self.renderer.name:
            raise TrainingError(
                f"the run was trained with the renderer '{last.renderer}' but would resume with "
                f"'{self.renderer.name}'. Restore model.renderer_name, or start a new run."
            )
        # A stage ended by a deadline continues, unless there is again only time to score it.
        at_deadline = self.services.control.stop_reason is not None
        self.finals = [
            checkpoint
            for checkpoint in checkpoints
            if checkpoint.final
            and (not is_deadline_stop(checkpoint.stop_reason) or (at_deadline and checkpoint is last))
        ]
        self.services.observers.restore(last.observers)
        self.resumed_from = None if last in self.finals else last
        # Nothing is left to train: the last stage has ended, or the run was stopped for good.
        self.resumed_at_end = last in self.finals and (
            len(self.finals) == len(self.stages) or last.stop_reason is not None
        )

    def _result(self) -> RunResult:
        last, control = self.finals[-1], self.services.control
        metric, mode = self._selection(last.stage)
        best = self._best(last.stage, metric, mode)
        artifacts = {"final_checkpoint": last.state, "final_sampler": last.sampler}
        if best is not None:
            artifacts |= {"best_checkpoint": best.state, "best_sampler": best.sampler}
        stop_reason = control.stop_reason if control.interrupted else last.stop_reason
        untrained = [stage.name for stage in self.stages[last.stage + 1 :]]
        # The prefix marks values of the last step that could be mistaken for those of the run.
        final = ("loss", "grad_norm")
        metrics = {f"final_{key}" if key in final else key: value for key, value in last.metrics.items()}
        metrics["steps"] = float(last.next_step)
        return RunResult(
            run_id=self.ctx.run_id,
            status="cancelled" if control.interrupted else "completed",
            metrics=metrics,
            artifacts=artifacts,
            error=stop_reason if control.interrupted else None,
            notes=RunNotes(
                renderer=self.renderer.name,
                selection_metric=metric,
                selection_mode=mode,
                tokens=last.tokens,
                stop_reason=stop_reason,
                untrained_stages=untrained if stop_reason is not None and untrained else None,
            ),
        )

    def _selection(self, stage: int) -> tuple[str, Literal["min", "max"]]:
        """Metric and direction for selecting a checkpoint: the config's, else the recipe's."""
        algorithm, chosen = self.stages[stage].algorithm, self.services.selection
        traits = traits_of(algorithm)
        cfg = algorithm.cfg
        metric = cfg.selection_metric or (chosen.metric if chosen else traits.selection_metric)
        if cfg.selection_mode is not None:
            return metric, cfg.selection_mode
        if chosen is not None and metric == chosen.metric and chosen.mode is not None:
            return metric, chosen.mode
        if metric == traits.selection_metric:
            return metric, traits.selection_mode
        return metric, "min" if "loss" in metric else "max"

    def _delete_old_weights(self, stage: int) -> None:
        """Delete the weights of checkpoints that are neither among the newest nor the best."""
        keep = self.stages[stage].algorithm.cfg.keep_checkpoints
        if keep is None:
            return
        kept = self.checkpoints.read_kept()
        pending = self.services.scoring.pending if self.services.scoring else None
        needed = kept[-keep.last :]
        # The next stage starts from the final checkpoint of a stage, even on resume.
        needed += [checkpoint for checkpoint in kept if checkpoint.final]
        # A checkpoint being scored may become the best one.
        needed += [checkpoint for checkpoint in kept if pending and checkpoint.next_step == pending["step"]]
        needed += self.checkpoints.rank(*self._selection(stage), stage=stage)[: keep.best]
        names = {checkpoint.name for checkpoint in needed}
        for checkpoint in kept:
            refs = (checkpoint.state, checkpoint.sampler)
            if checkpoint.name not in names and all(_is_below(ref, self.ctx.output_dir) for ref in refs):
                self.checkpoints.drop(checkpoint)  # first, so that no one reads partly deleted weights
                for ref in refs:
                    shutil.rmtree(ref, ignore_errors=True)

    def _best(self, stage: int, metric: str, mode: Literal["min", "max"]) -> Checkpoint | None:
        """The checkpoint of the last stage that is best by the selection metric."""
        best = self.checkpoints.best(metric, mode, stage=stage)
        if best is None and not self.services.control.interrupted:
            known = sorted({key for checkpoint in self.checkpoints.read() for key in checkpoint.metrics})
            guess = closest(metric, known)
            hint = f"did you mean '{guess}'?" if guess else f"they have {', '.join(known) or 'none'}."
            get_logger(__name__).warning("no checkpoint has the metric '%s' to select by; %s", metric, hint)
        return best


def _model(ctx: RunContext, services: RunServices) -> tuple[TrainingClient, Renderer]:
    if services.client is None or services.renderer is None:
        raise BackendError(
            f"the backend '{ctx.backend.name}' has no training_client, which this recipe needs. "
            "Return one from prepare(), or choose another backend."
        )
    return services.client, services.renderer


def _is_below(ref: str, folder: Path) -> bool:
    """Whether weights are in a local folder; those of a service are not ours to delete."""
    return "://" not in ref and Path(ref).resolve().is_relative_to(folder.resolve())
