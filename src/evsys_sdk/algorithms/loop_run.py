"""One run of a user's training loop: its model, its steps, and its record.

    for step in run.steps(100):
        [answers] = run.model.sample([prompt], n=8)
        run.log(run.model.train(answers).metrics)

Checkpoints, scoring, metrics, budget and result use the same loop as recipes. A killed run resumes after its last
checkpoint, with the weights, the optimizer and `run.state` of that step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ..backends.client import ForwardBackwardOutput, ModelSpec, TrainingClient
from ..config.base import Strict
from ..config.fields import NOT_SEARCHED
from ..errors import BackendError, DataError, TrainingError, show
from ..protocols import AlgorithmTraits, Row, RunContext, RunResult
from ..record.folders import note_length
from ..record.jsonable import dump_json
from ..record.run_files.metrics import as_number
from ..rollouts.rollout import Rollout
from ..training.blocking import run_blocking
from ..training.frozen_model import SampledTurn
from ..training.loop import LoopSettings, TrainingLoop
from ..training.model import Model
from .base import BaseAlgorithm, KeepCheckpoints
from .stages import Stage, StagedRun


class LoopConfig(Strict):
    """Options of a user's loop."""

    args: dict[str, Any] = {}
    """Values for `run.args`; a matrix may vary them."""
    lora_rank: int = Field(default=32, ge=1, le=1024)
    """Rank of the adapter."""
    save_every: int | None = Field(default=10, ge=1, json_schema_extra=NOT_SEARCHED)
    """Write a checkpoint every this many steps; the last step is always saved."""
    keep_checkpoints: KeepCheckpoints | None = Field(
        default_factory=lambda: KeepCheckpoints(last=2), json_schema_extra=NOT_SEARCHED
    )
    """Delete the weights of all checkpoints but the last and the best few."""
    selection_metric: ClassVar[None] = None
    selection_mode: ClassVar[None] = None
    eval_every: ClassVar[None] = None


class _Builder(BaseAlgorithm):
    """Adapts a user's loop to the training loop and stages: it has state but builds no batches."""

    name: ClassVar[str] = "script"
    cfg: Any
    total = 0

    def __init__(self, run: LoopRun, cfg: LoopConfig) -> None:
        self.run, self.cfg = run, cfg

    def traits(self) -> AlgorithmTraits:
        return AlgorithmTraits(selection_metric=self.selection_metric, selection_mode=self.selection_mode)

    def settings(self) -> LoopSettings:
        return LoopSettings(self.total, 0.0, save_every=self.cfg.save_every)

    def state(self) -> dict[str, Any]:
        return self.run.save_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.run.restore_state(state)


class LoopRun:
    """One run of a loop: an arm with a seed."""

    def __init__(self, ctx: RunContext, cfg: LoopConfig) -> None:
        self._builder = _Builder(self, cfg)
        stage = Stage("script", self._builder, ctx.extras["train_rows"])
        self._stage, self._staged = stage, StagedRun.of(ctx, [stage])
        self._ctx, self._services = ctx, self._staged.services
        self.name, self.config = ctx.run_id, ctx.config
        self.seed = self._services.seed
        self.args: dict[str, Any] = dict(cfg.args)
        """The arguments of this arm."""
        self.rows: Sequence[Row] = stage.rows
        """The rows of `data`."""
        self.folder: Path = ctx.output_dir
        self.state: dict[str, Any] = {}
        """Your JSON state, saved with every checkpoint and restored on resume."""
        self.model = Model(self._staged.client, self._staged.renderer, another=self._open_adapter)
        self._loop: TrainingLoop | None = None
        self._step: int | None = None
        self._began = (0, 0, 0.0)
        """Tokens trained and sampled before the current step, and its start time."""
        self._done = 0
        self._metrics: dict[str, Any] = {}
        self._adapters: dict[str, str] = {}
        self._opened: list[dict[str, Any]] = []

    @property
    def seconds_left(self) -> float | None:
        """Remaining time of the budget; None without a time limit."""
        return self._services.seconds_left()

    def steps(self, total: int, *, save_every: int | None = None, reserve_s: float = 0.0) -> Generator[int]:
        """The step numbers from 0, without those that a resumed run has done.

        `reserve_s` ends the loop while this many seconds of the time budget are left for scoring.
        """
        if self._loop is not None:
            raise TrainingError("run.steps() was called twice. Write one loop, and select phases by the step number.")
        if save_every is not None:
            self._builder.cfg = self._builder.cfg.model_copy(update={"save_every": save_every})
        self._builder.total = total
        note_length(self.folder, total, measure=self._builder.selection_metric, mode=self._builder.selection_mode)
        if self._staged.resumed_at_end:
            return
        if self._services.resume:
            self.model.note_change()  # fixes `base` to the initial weights before the resume
        self._loop, self._done = run_blocking(lambda: self._staged.open_loop(0, self._stage, self._builder))
        while self._done < self._loop.settings.total_steps and not self._must_stop(reserve_s):
            self._step, self._metrics = self._done, {}
            self._began = (self.model.tokens_trained, self.model.tokens_sampled, time.perf_counter())
            yield self._step
            self._finish_step()
            loop, done = self._loop, self._done
            run_blocking(lambda loop=loop, done=done: loop.pass_step(done))

    def log(self, metrics: Mapping[str, Any] | ForwardBackwardOutput | None = None, /, **more: float) -> None:
        """Add metrics of the current step, or the result of `model.train(...)`."""
        if self._step is None:
            raise TrainingError("run.log() was called outside of run.steps(). Call it inside the loop.")
        values = metrics.metrics if isinstance(metrics, ForwardBackwardOutput) else metrics or {}
        self._metrics |= {key: as_number(key, value) for key, value in {**values, **more}.items()}

    def log_rollouts(
        self,
        groups: Sequence[Sequence[SampledTurn]],
        rewards: Sequence[Sequence[float]],
        tasks: Sequence[str] | None = None,
    ) -> None:
        """Record the answers of a step with their rewards; `tasks` names the task of each group."""
        names = tasks or [f"prompt{number + 1}" for number in range(len(groups))]
        shape = [len(group) for group in groups]
        if [np.size(group) for group in rewards] != shape or len(names) != len(groups):
            raise DataError(
                f"log_rollouts: {len(groups)} groups of {show(shape)} answers, but rewards {show(rewards)} and "
                f"{len(names)} tasks. Give every answer a reward and every group a task."
            )
        rollouts = [
            Rollout(
                task_id=name,
                sample=number,
                status="truncated" if answer.stop_reason == "length" else "ok",
                reward=_reward(name, reward),
                turns=[answer],
                messages=answer.messages,
                error="the answer was cut off at max_tokens" if answer.stop_reason == "length" else None,
            )
            for name, answers, task_rewards in zip(names, groups, rewards, strict=True)
            for number, (answer, reward) in enumerate(zip(answers, task_rewards, strict=True))
        ]
        scored = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        self.log({"reward/mean": sum(scored) / max(len(scored), 1)})
        self._services.observers.on_rollouts((self._step or 0) + 1, rollouts)

    def score(self) -> dict[str, float]:
        """Score the current weights on the benchmarks with `run_every`, which are also scored automatically."""
        scoring = self._services.scoring
        if scoring is None:
            raise TrainingError("no benchmark is scored during training. Set `run_every` and split val on one of them.")
        step = self._done if self._step is None else self._step + 1
        return run_blocking(lambda: scoring.score_now(step, self._staged.client))

    def finish(self) -> RunResult:
        """Save and score the final weights; called once after the loop."""
        return run_blocking(self._finish)

    def close(self) -> None:
        """Release further adapters."""
        for handles in self._opened:
            self._ctx.backend.teardown(handles)
        self._opened.clear()

    def save_state(self) -> dict[str, Any]:
        """The state of a checkpoint besides the main adapter's weights."""
        dump_json(self.state, "run.state")
        for name, adapter in self.model.adapters.items():
            self._adapters[name] = adapter.save(f"step{self._done:06d}-attempt{self._services.attempt}")
        return {"state": self.state, "adapters": self._adapters}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; further adapters are loaded when the loop opens them."""
        self.state.update(state.get("state", {}))
        self._adapters = dict(state.get("adapters", {}))

    async def _finish(self) -> RunResult:
        if not self._staged.resumed_at_end:
            if self._loop is None:
                raise TrainingError("the loop took no step, so nothing was trained. Iterate over run.steps(n).")
            if self._step is not None and self._metrics:  # `break` inside a step
                self._finish_step()
            if self._done < self._loop.settings.total_steps:
                self._services.control.stop(f"the loop ended after step {self._done} of {self._builder.total}")
            self._staged.finals.append(await self._loop.end(self._done))
        return await self._staged.finish()

    def _must_stop(self, reserve_s: float) -> bool:
        left = self.seconds_left if reserve_s else None
        if left is not None and left <= reserve_s:
            self._services.control.stop(f"{left:.0f} s of the time budget are left; {reserve_s:g} s are reserved")
        return self._services.control.stop_reason is not None

    def _finish_step(self) -> None:
        assert self._loop is not None
        assert self._step is not None
        trained, sampled, began = self._began
        elapsed = time.perf_counter() - began
        counts = {"tokens": self.model.tokens_trained - trained, "tokens_sampled": self.model.tokens_sampled - sampled}
        if self._step == 0 and "loss" not in self._metrics and "reward/mean" in self._metrics:
            self._builder.selection_metric, self._builder.selection_mode = "reward/mean", "max"  # pyright: ignore[reportAttributeAccessIssue]
        self._done = self._step + 1
        self._loop.note_step(self._step, {**self._metrics, **counts, "time/step_s": elapsed})
        self._step = None

    def _open_adapter(self, name: str, lora_rank: int, seed: int) -> TrainingClient:
        client, backend = self._staged.client, self._ctx.backend
        spec = ModelSpec(client.model_name, lora_rank=lora_rank, seed=seed)
        handles = backend.prepare(model=spec, run_dir=self.folder / "adapters" / name)
        self._opened.append(handles)
        opened = handles.get("training_client")
        if opened is None:
            raise BackendError(f"the backend '{backend.name}' has no training client, so it has no adapters.")
        watched: Any = self._services.watch(opened)
        if watched is not opened:  # check batches of every adapter for benchmark tasks
            watched.on_batch = getattr(client, "on_batch", None)
        if name in self._adapters:
            watched.load_state(self._adapters[name]).result()
        return watched


def _reward(task: str, value: Any) -> float:
    reward = float(as_number(f"reward of {task}", value))
    if not math.isfinite(reward):
        raise DataError(f"log_rollouts: the reward of an answer to '{task}' is {reward}. Give a finite number.")
    return reward
