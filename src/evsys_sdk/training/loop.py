"""The training loop: build a batch, forward and backward, optimiser step, and everything that happens around them.

The recipe only builds batches. Where it allows (`builds_ahead`), the next batch is built and submitted while the last
one is still in flight, so that neither the backend nor the recipe waits for the other. Before a checkpoint or an
evaluation everything in flight is awaited, so that what is saved is a state the run was really in.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from ..backends.client import AdamParams
from .batch import StepBuilder, TrainingBatch
from .callback import Observers, RunControl
from .checkpoints import Checkpoint, CheckpointLog
from .schedule import Schedule
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..backends.client import ForwardBackwardOutput, OptimStepOutput, TrainingClient
    from ..backends.future import Operation

type Evaluate = Callable[[int], Awaitable[Mapping[str, float]]]
"""Scores the live model after a step and returns the metrics."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How long to train, how fast to learn, when to save and when to score."""

    total_steps: int
    learning_rate: float
    schedule: Schedule = field(default_factory=Schedule)
    adam: AdamParams = field(default_factory=AdamParams)
    save_every: int | None = None
    save_at_fractions: tuple[float, ...] = ()
    eval_every: int | None = None

    def learning_rate_at(self, step: int) -> float:
        return self.learning_rate * self.schedule.factor(step, self.total_steps)

    def saves_after(self, steps_done: int) -> bool:
        at_fraction = any(round(fraction * self.total_steps) == steps_done for fraction in self.save_at_fractions)
        return at_fraction or _is_multiple(steps_done, self.save_every)

    def scores_after(self, steps_done: int) -> bool:
        return _is_multiple(steps_done, self.eval_every)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that was submitted and not yet awaited."""

    step: int
    batch: TrainingBatch
    forward_backward: Operation[ForwardBackwardOutput]
    optim: Operation[OptimStepOutput]
    learning_rate: float
    submitted_at: float
    build_s: float


@dataclass(slots=True)
class TrainingLoop:
    """Trains one stage of one run."""

    client: TrainingClient
    builder: StepBuilder
    settings: LoopSettings
    checkpoints: CheckpointLog
    observers: Observers
    control: RunControl = field(default_factory=RunControl)
    watchdog: Watchdog = field(default_factory=Watchdog)
    evaluate: Evaluate | None = None
    """Asked every `eval_every` steps, and after the last one before the final checkpoint is written."""
    at_end: Evaluate | None = None
    """Asked after the last step only."""
    stage: int = 0
    offset: int = 0
    """Steps that earlier stages took; logged steps count on from there."""
    attempt: int = 1
    """How often the run was started; keeps the names of checkpoints unique when a killed run repeats steps."""
    renderer: str | None = None
    last_saved: Checkpoint | None = None
    last_metrics: dict[str, float] = field(default_factory=dict[str, float])
    _last_finish: float = 0.0

    async def run(self, *, start: int = 0) -> Checkpoint:
        """Train from step `start` of this stage to its end or a requested stop; returns the checkpoint it ended on."""
        step = start
        if start == 0 and self.evaluate is not None and self.settings.eval_every:
            await self.evaluate(self.offset)
        in_flight: deque[_InFlight] = deque()
        try:
            while step < self.settings.total_steps and self.control.stop_reason is None:
                submitted = await self._submit(step)
                step += 1
                if submitted is not None:
                    in_flight.append(submitted)
                at_barrier = self._is_barrier(step)
                keep = 1 if self.builder.builds_ahead and not at_barrier else 0
                while len(in_flight) > keep:
                    await self._finish(in_flight.popleft())
                if at_barrier and step < self.settings.total_steps:
                    await self._score_and_save(step)
        finally:
            # After an error the later steps cannot be trusted, but leaving them running would race with teardown.
            await _settle(in_flight, self._finish if self.control.stop_reason else None)
        return await self._end(step)

    async def _submit(self, step: int) -> _InFlight | None:
        """Build the batch of a step and send it off; None when there is nothing to learn from."""
        began = time.perf_counter()
        batch = await self.builder.build_batch(step)
        build_s = time.perf_counter() - began
        if not batch.data:
            self.watchdog.check_empty(step + 1)
            self.observers.on_step(self.offset + step + 1, {**batch.metrics, "empty_batch": 1.0})
            return None
        learning_rate = self.settings.learning_rate_at(step)
        if isinstance(batch.loss_fn, str):
            forward_backward = self.client.forward_backward(batch.data, batch.loss_fn, batch.loss_fn_config)
        else:
            forward_backward = self.client.forward_backward_custom(batch.data, batch.loss_fn)
        optim = self.client.optim_step(replace(self.settings.adam, learning_rate=learning_rate))
        return _InFlight(step, batch, forward_backward, optim, learning_rate, time.perf_counter(), build_s)

    async def _finish(self, flight: _InFlight) -> None:
        """Await a step, log it and check that the run is still healthy."""
        output = await flight.forward_backward
        optim = await flight.optim
        now = time.perf_counter()
        elapsed = now - max(flight.submitted_at, self._last_finish)
        self._last_finish = now
        tokens = sum(len(datum.tokens) for datum in flight.batch.data)
        metrics: dict[str, float] = {
            "loss": output.loss,
            **output.metrics,
            **optim.metrics,
            **flight.batch.metrics,
            **self.builder.step_metrics(flight.step, flight.batch, output),
            "learning_rate": flight.learning_rate,
            "tokens": float(tokens),
            "time/step_s": elapsed,
            "time/build_s": flight.build_s,
            "time/tokens_per_s": tokens / max(elapsed, 1e-9),
        }
        self.last_metrics = metrics
        self.observers.on_step(self.offset + flight.step + 1, metrics)
        self.watchdog.check_step(self.offset + flight.step + 1, metrics)

    def _is_barrier(self, steps_done: int) -> bool:
        ends = steps_done == self.settings.total_steps or self.control.stop_reason is not None
        return ends or self.settings.saves_after(steps_done) or self.settings.scores_after(steps_done)

    async def _score_and_save(self, steps_done: int) -> None:
        scores: Mapping[str, float] = {}
        if self.evaluate is not None and self.settings.scores_after(steps_done):
            scores = await self.evaluate(self.offset + steps_done)
        if scores or self.settings.saves_after(steps_done):
            await self._save(steps_done, scores)

    async def _end(self, steps_done: int) -> Checkpoint:
        finished = steps_done == self.settings.total_steps or not self.control.interrupted
        scores: dict[str, float] = {}
        for score in (self.evaluate, self.at_end) if finished else ():
            scores |= await score(self.offset + steps_done) if score is not None else {}
        if not finished and self.last_saved is not None and self.last_saved.next_step == self.offset + steps_done:
            return self.last_saved
        return await self._save(steps_done, scores, final=finished)

    async def _save(self, steps_done: int, scores: Mapping[str, float], *, final: bool = False) -> Checkpoint:
        """Store weights, optimizer and sampler, then the line that says so."""
        name = self._checkpoint_name(steps_done, final)
        state, sampler = self.client.save_state(name), self.client.sampler(name)
        checkpoint = Checkpoint(
            name=name,
            next_step=self.offset + steps_done,
            state=await state,
            sampler=(await sampler).ref,
            stage=self.stage,
            final=final,
            builder=self.builder.state(),
            observers=self.observers.state(),
            watchdog=self.watchdog.state(),
            renderer=self.renderer,
            metrics={**_without_timing(self.last_metrics), **scores},
            stop_reason=self.control.stop_reason,
        )
        self.checkpoints.append(checkpoint)
        self.last_saved = checkpoint
        self.observers.on_checkpoint(asdict(checkpoint))
        return checkpoint

    def _checkpoint_name(self, steps_done: int, final: bool) -> str:
        stage = f"stage{self.stage}-" if self.stage else ""
        attempt = f"-attempt{self.attempt}" if self.attempt > 1 else ""
        return f"{stage}step{steps_done:06d}{'-final' if final else ''}{attempt}"


async def _settle(in_flight: deque[_InFlight], finish: Callable[[_InFlight], Awaitable[None]] | None) -> None:
    """Await what is still in flight: logged when the run was asked to stop, only waited for after an error."""
    while in_flight:
        flight = in_flight.popleft()
        if finish is not None:
            await finish(flight)
            continue
        for operation in (flight.forward_backward, flight.optim):
            operation.wait()


def _is_multiple(steps: int, every: int | None) -> bool:
    return every is not None and steps > 0 and steps % every == 0


def _without_timing(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith("time/")}
