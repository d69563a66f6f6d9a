"""Evaluation that overlaps training: a frozen sampler is scored on another thread while the loop continues.

One evaluation runs at a time. It is recorded when the next one is due or when the stage ends, so that its consequences
(early stopping, the record, the best checkpoint) happen at the same step on any machine. A checkpoint written meanwhile
names the sampler, and a run resumed from it scores the sampler again for its step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..log import get_logger
from .callback import EvalRecord, Observers

if TYPE_CHECKING:
    from ..backends.client import SamplingClient, TrainingClient
    from ..record.run_files.checkpoints import CheckpointLog

type ScoreSnapshot = Callable[[int, SamplingClient, bool], Sequence[StepScores]]
"""Scores a sampler of a step, on the due benchmarks or on all; runs on its own thread."""


@dataclass(frozen=True, slots=True)
class StepScores:
    """The scores of one set of tasks."""

    record: EvalRecord
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores by full name, to select a checkpoint by; empty if the record is incomplete."""


@dataclass(frozen=True, slots=True)
class _Running:
    step: int
    sampler: str
    result: Future[Sequence[StepScores]]


@dataclass(slots=True)
class BackgroundScoring:
    """Scores snapshots of the trained model, one at a time."""

    score: ScoreSnapshot
    is_due: Callable[[int], bool]
    """Whether to score the model after a step."""
    observers: Observers
    checkpoints: CheckpointLog
    failures: dict[int, str] = field(default_factory=dict[int, str])
    """Step -> why its evaluation failed."""
    awaited: threading.Event = field(default_factory=threading.Event)
    """Set while training waits for the evaluation, which may then use the whole machine."""
    _running: _Running | None = None
    _last: tuple[int, dict[str, float]] | None = None
    """The last recorded step, and its scores."""
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="evsys-scoring")
    )

    @property
    def pending(self) -> dict[str, Any] | None:
        """The running evaluation, for a checkpoint."""
        return None if self._running is None else {"step": self._running.step, "sampler": self._running.sampler}

    def start(self, step: int, sampler: SamplingClient, *, everything: bool = False) -> None:
        """Start an evaluation; the previous one must be collected."""
        assert self._running is None
        self.awaited.clear()
        # With the run's context, so that its budget pays for judges.
        result = self._thread.submit(copy_context().run, self.score, step, sampler, everything)
        self._running = _Running(step, sampler.ref, result)

    async def start_again(self, pending: Mapping[str, Any], client: TrainingClient) -> None:
        """Restart the evaluation that was running when the run was aborted."""
        step = int(pending["step"])
        try:
            self.start(step, await client.open_sampler(str(pending["sampler"])))
        except Exception as error:
            self._fail(step, error)

    async def collect(self) -> None:
        """Await and record the running evaluation."""
        if self._running is None:
            return
        running = self._running
        self.awaited.set()
        try:
            scorings = await asyncio.wrap_future(running.result)
        except Exception as error:
            self._running = None
            self._fail(running.step, error)
            return
        scores = {name: value for scoring in scorings for name, value in scoring.scores.items()}
        for scoring in scorings:
            self.observers.on_eval(scoring.record)
        self.checkpoints.add_scores(running.step, scores)
        # Last, so that a checkpoint after an interruption above still names it.
        self._running, self._last = None, (running.step, scores)

    async def score_now(self, step: int, client: TrainingClient) -> dict[str, float]:
        """Scores of the live model; each step is scored only once."""
        await self.collect()
        if (self._last is None or self._last[0] != step) and step not in self.failures:
            try:
                self.start(step, await client.sampler(), everything=True)
            except Exception as error:
                self._fail(step, error)
            await self.collect()
        return self._last[1] if self._last is not None and self._last[0] == step else {}

    def close(self) -> None:
        """Drop the running evaluation; close its engine first, or this waits for it."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._running = None

    def _fail(self, step: int, error: Exception) -> None:
        """Record a failed evaluation, which must not fail the training."""
        self.failures[step] = f"{type(error).__name__}: {error}"
        get_logger(__name__).error("the evaluation after step %d failed: %s", step, self.failures[step])
