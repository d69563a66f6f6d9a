"""The training loop: build a batch, forward and backward, optimiser step, checkpoints and evaluations.

The recipe only builds batches. If it allows (`builds_ahead`), the next batch is built and submitted while the previous
step is in flight. Before a checkpoint or an evaluation, all steps in flight are awaited, so that a consistent state is
saved.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backends.client import AdamParams
from ..errors import TrainingError, show
from ..record.run_files.checkpoints import Checkpoint, CheckpointLog
from ..record.run_files.metrics import TIMING
from ..rollouts.rollout import AllFailedError
from .batch import Schedule, StepBuilder, TrainingBatch, submit_step
from .callback import Observers, RunControl
from .machine_load import MachineLoad
from .scoring import BackgroundScoring
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..backends.client import ForwardBackwardOutput, OptimStepOutput, TrainingClient
    from ..backends.future import Operation

type Evaluate = Callable[[int], Awaitable[Mapping[str, float]]]
"""Scores the live model after a step and returns the metrics."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Training length, learning rate, and schedule of checkpoints and evaluations."""

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
        # A fraction of a short run may round to 0; use the first step then.
        at_fraction = any(max(round(part * self.total_steps), 1) == steps_done for part in self.save_at_fractions)
        return at_fraction or _is_multiple(steps_done, self.save_every)

    def scores_after(self, steps_done: int) -> bool:
        return _is_multiple(steps_done, self.eval_every)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted step that is not yet awaited."""

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
    """Called every `eval_every` steps, and after the last one before the final checkpoint."""
    at_end: Evaluate | None = None
    """Called after the last step only."""
    scoring: BackgroundScoring | None = None
    """Scores snapshots during training, and the last step before the final checkpoint."""
    stage: int = 0
    offset: int = 0
    """Steps of earlier stages; logged step numbers continue from there."""
    attempt: int = 1
    """Number of starts of the run; makes checkpoint names unique when a killed run repeats steps."""
    renderer: str | None = None
    after_save: Callable[[], None] | None = None
    """Called after a checkpoint, to delete old ones."""
    last_saved: Checkpoint | None = None
    last_metrics: dict[str, float] = field(default_factory=dict[str, float])
    tokens: dict[str, int] = field(default_factory=lambda: {"trained": 0, "sampled": 0})
    """Tokens of the run so far, earlier stages included."""
    _last_finish: float = 0.0
    _load: MachineLoad = field(default_factory=MachineLoad)
    _scored: tuple[int, dict[str, float]] | None = None
    """The last scored step, and its scores."""

    async def run(self, *, start: int = 0) -> Checkpoint:
        """Train from step `start` to the end of this stage or a requested stop; returns the last checkpoint."""
        step = start
        # A later stage starts with weights that were scored at the end of the previous one.
        if self.offset + start == 0 and self.settings.eval_every:
            await self._score(step)
        in_flight: deque[_InFlight] = deque()
        try:
            while step < self.settings.total_steps and self.control.stop_reason is None:
                await self._submit(step, in_flight)
                step += 1
                at_barrier = self._is_barrier(step)
                await self._finish_all(in_flight, but=1 if self.builder.builds_ahead and not at_barrier else 0)
                await self.pass_step(step)
            await self._finish_all(in_flight)
        except Exception:
            # Later steps are invalid, but unawaited ones would race with teardown.
            await _settle(in_flight)
            raise
        return await self.end(step)

    async def pass_step(self, steps_done: int) -> None:
        """After a step that is not the last: score and save if due."""
        if steps_done < self.settings.total_steps and self._is_barrier(steps_done):
            await self._score_and_save(steps_done)

    async def _submit(self, step: int, in_flight: deque[_InFlight]) -> None:
        """Build and submit the batch of a step; an empty batch is only logged."""
        began, number = time.perf_counter(), self.offset + step + 1
        try:
            batch = await self.builder.build_batch(step)
        except AllFailedError as error:
            self.observers.on_rollouts(number, error.rollouts)  # recorded for diagnosis
            raise TrainingError(str(error)) from None
        build_s = time.perf_counter() - began
        if batch.rollouts:
            self.observers.on_rollouts(number, batch.rollouts)
        if not batch.data:
            await self._finish_all(in_flight)
            self.observers.on_step(number, {**_numbers(batch.metrics), "empty_batch": 1.0})
            # After all steps in flight, which would reset the count of empty batches.
            if self.control.stop_reason is None:
                await self._keep_weights(step + 1, partial(self.watchdog.check_empty, number, batch.empty_because))
            return
        learning_rate = self.settings.learning_rate_at(step)
        adam = replace(self.settings.adam, learning_rate=learning_rate)
        forward_backward, optim = submit_step(self.client, batch, adam)
        now = time.perf_counter()
        in_flight.append(_InFlight(step, batch, forward_backward, optim, learning_rate, now, build_s))

    async def _finish_all(self, in_flight: deque[_InFlight], *, but: int = 0) -> None:
        while len(in_flight) > but:
            # Removed only when finished, so that a failed step is still awaited.
            await self._finish(in_flight[0])
            in_flight.popleft()

    async def _finish(self, flight: _InFlight) -> None:
        """Await a step, log it and check the run's health."""
        output = await flight.forward_backward
        optim = await flight.optim
        now = time.perf_counter()
        # Steps overlap: a step's time starts when the previous one ends.
        elapsed = now - max(flight.submitted_at, self._last_finish)
        self._last_finish = now
        tokens = sum(len(datum.tokens) for datum in flight.batch.data)
        metrics = {
            "loss": output.loss,
            **output.metrics,
            **optim.metrics,
            **flight.batch.metrics,
            **self.builder.step_metrics(flight.step, flight.batch, output),
            "learning_rate": flight.learning_rate,
            "tokens": tokens,
            "time/step_s": elapsed,
            "time/build_s": flight.build_s,
            "time/tokens_per_s": tokens / max(elapsed, 1e-9),
        }
        self.note_step(flight.step, metrics)

    def note_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log a finished step and check the run's health."""
        self.last_metrics = metrics = _numbers({**metrics, **self._load.read()})
        self.tokens["trained"] += int(metrics.get("tokens", 0))
        self.tokens["sampled"] += int(metrics.get("tokens_sampled", 0))
        self.observers.on_step(self.offset + step + 1, metrics)
        self.watchdog.check_step(self.offset + step + 1, metrics)

    def _is_barrier(self, steps_done: int) -> bool:
        ends = steps_done == self.settings.total_steps or self.control.stop_reason is not None
        due = self.settings.saves_after(steps_done) or self.settings.scores_after(steps_done)
        return ends or due or self._starts_scoring(steps_done)

    def _starts_scoring(self, steps_done: int) -> bool:
        return self.scoring is not None and self.scoring.is_due(self.offset + steps_done)

    async def _score(self, steps_done: int) -> dict[str, float]:
        """Scores of the live model; each step is scored only once."""
        if self._scored is None or self._scored[0] != steps_done:
            scores: Mapping[str, float] = {}
            if self.evaluate is not None:
                scores = await self.evaluate(self.offset + steps_done)
            self._scored = (steps_done, dict(scores))
        return self._scored[1]

    async def _score_and_save(self, steps_done: int) -> None:
        # Record the previous evaluation first, always at this step; it may request a stop.
        starts = self._starts_scoring(steps_done)
        if starts and self.scoring is not None:
            await self.scoring.collect()
        scores = await self._score(steps_done) if self.settings.scores_after(steps_done) else {}
        if self.control.stop_reason is not None and not self.control.interrupted:
            return  # `end` saves it
        if scores or starts or self.settings.saves_after(steps_done):
            await self._save(steps_done, scores, starts_scoring=starts)

    def _recorded_stop(self, *, final: bool) -> str | None:
        """The recorded stop reason; None for a finished stage or a stop of the stage only."""
        control = self.control
        return None if final and (control.interrupted or control.stage_only) else control.stop_reason

    async def end(self, steps_done: int) -> Checkpoint:
        """After the last step or a stop: score and save."""
        finished = steps_done == self.settings.total_steps or not self.control.interrupted
        # No step since the last checkpoint, so another one would be identical.
        if not finished and self.last_saved is not None and self.last_saved.next_step == self.offset + steps_done:
            return self.last_saved
        if finished and self.control.stop_reason is None:
            learned = bool(self.tokens["trained"] or self.last_metrics)  # in this stage or an earlier one
            check = partial(self.watchdog.check_learned, self.offset + steps_done, learned=learned)
            await self._keep_weights(steps_done, check)
        scores = await self._score(steps_done) if finished else {}
        if finished and self.scoring is not None:
            scores = {**scores, **await self.scoring.score_now(self.offset + steps_done, self.client)}
        if finished and self.at_end is not None:
            scores = {**scores, **await self.at_end(self.offset + steps_done)}
        return await self._save(steps_done, scores, final=finished)

    async def _keep_weights(self, steps_done: int, check: Callable[[], None]) -> None:
        """Run `check`; if it fails, save a checkpoint first, because the weights are still valid."""
        try:
            check()
        except TrainingError:
            await self._save(steps_done, {})
            raise

    async def _save(
        self, steps_done: int, scores: Mapping[str, float], *, final: bool = False, starts_scoring: bool = False
    ) -> Checkpoint:
        """Store weights, optimizer and sampler, then the checkpoint's record."""
        name = self._checkpoint_name(steps_done, final)
        try:
            # Submit both before awaiting either, so that no step falls between weights and sampler.
            saving, sampling = self.client.save_state(name), self.client.sampler(name)
            state, sampler = await saving, await sampling
            starting = {"step": self.offset + steps_done, "sampler": sampler.ref} if starts_scoring else None
            checkpoint = Checkpoint(
                name=name,
                next_step=self.offset + steps_done,
                state=state,
                sampler=sampler.ref,
                stage=self.stage,
                final=final,
                builder=self.builder.state(),
                observers=self.observers.state(),
                watchdog=self.watchdog.state(),
                renderer=self.renderer,
                metrics=_reproducible({**self.last_metrics, **scores}),
                tokens=dict(self.tokens),
                stop_reason=self._recorded_stop(final=final),
                scoring=starting or (self.scoring.pending if self.scoring else None),
            )
            self.checkpoints.append(checkpoint)
        except OSError as error:
            raise TrainingError(
                f"the checkpoint '{name}' could not be stored: {error}. Earlier ones are intact; free disk space or "
                "fix permissions, then continue with --resume."
            ) from error
        self.last_saved = checkpoint
        self.observers.on_checkpoint(asdict(checkpoint))
        if self.after_save is not None:
            self.after_save()
        if starts_scoring and self.scoring is not None:
            self.scoring.start(self.offset + steps_done, sampler)
        return checkpoint

    def _checkpoint_name(self, steps_done: int, final: bool) -> str:
        stage = f"stage{self.stage}-" if self.stage else ""
        attempt = f"-attempt{self.attempt}" if self.attempt > 1 else ""
        return f"{stage}step{steps_done:06d}{'-final' if final else ''}{attempt}"


async def _settle(in_flight: Iterable[_InFlight]) -> None:
    """Await submitted steps, ignoring errors."""
    for flight in in_flight:
        for operation in (flight.forward_backward, flight.optim):
            with suppress(Exception):
                await operation


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as floats, for the record."""
    numbers: dict[str, float] = {}
    for key, value in metrics.items():
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            raise TrainingError(f"the metric '{key}' is not a number (got {show(value)}). Log numbers only.") from None
    return numbers


def _is_multiple(steps: int, every: int | None) -> bool:
    return every is not None and steps > 0 and steps % every == 0


def _reproducible(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that are the same in a repeated run; timings and non-finite values are dropped."""
    return {key: value for key, value in metrics.items() if not key.startswith(TIMING) and math.isfinite(value)}
