"""Scoring that overlaps training: a frozen sampler is scored on its own thread while the loop continues.

One scoring runs at a time. It is recorded at fixed moments, when the next one is due and when the stage ends, so that
everything that follows from it (early stopping, the record, the best checkpoint) happens at the same step however fast
the machine is. A checkpoint that is written meanwhile names the sampler, and a run that continues from there scores it
again for the step it belongs to.
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
"""Scores a sampler that was taken after a step, on what is due then or on everything; runs on its own thread."""


@dataclass(frozen=True, slots=True)
class StepScores:
    """What came of scoring one set of tasks."""

    record: EvalRecord
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """What may choose a checkpoint, by full name; nothing where the record is not complete."""


@dataclass(frozen=True, slots=True)
class _Running:
    step: int
    sampler: str
    result: Future[Sequence[StepScores]]


@dataclass(slots=True)
class BackgroundScoring:
    """Scores snapshots of the model in training, one at a time."""

    score: ScoreSnapshot
    is_due: Callable[[int], bool]
    """Whether the model is to be scored after a step."""
    observers: Observers
    checkpoints: CheckpointLog
    failures: dict[int, str] = field(default_factory=dict[int, str])
    """Step -> why it could not be scored at all."""
    awaited: threading.Event = field(default_factory=threading.Event)
    """Set while training waits for the scoring, which then need not spare it."""
    _running: _Running | None = None
    _last: tuple[int, dict[str, float]] | None = None
    """The last step that was recorded, and its scores."""
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="evsys-scoring")
    )

    @property
    def pending(self) -> dict[str, Any] | None:
        """What a checkpoint must know about the scoring that is still running."""
        return None if self._running is None else {"step": self._running.step, "sampler": self._running.sampler}

    def start(self, step: int, sampler: SamplingClient, *, everything: bool = False) -> None:
        """Begin to score; the one before must have been collected."""
        assert self._running is None
        self.awaited.clear()
        # In the context of the run: its budget also pays for the answers of judges.
        result = self._thread.submit(copy_context().run, self.score, step, sampler, everything)
        self._running = _Running(step, sampler.ref, result)

    async def start_again(self, pending: Mapping[str, Any], client: TrainingClient) -> None:
        """Score what was being scored when the run was aborted."""
        step = int(pending["step"])
        try:
            self.start(step, await client.open_sampler(str(pending["sampler"])))
        except Exception as error:
            self._fail(step, error)

    async def collect(self) -> None:
        """Wait for what is running and record it."""
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
        # Only now: a checkpoint that is written after an interruption above must still name it.
        self._running, self._last = None, (running.step, scores)

    async def score_now(self, step: int, client: TrainingClient) -> dict[str, float]:
        """The scores of the live model, waited for; a step is scored once, however often it is asked for."""
        await self.collect()
        if (self._last is None or self._last[0] != step) and step not in self.failures:
            try:
                self.start(step, await client.sampler(), everything=True)
            except Exception as error:
                self._fail(step, error)
            await self.collect()
        return self._last[1] if self._last is not None and self._last[0] == step else {}

    def close(self) -> None:
        """Forget what is running; its engine must have been closed before, or this waits for it."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._running = None

    def _fail(self, step: int, error: Exception) -> None:
        """A failure must not undo the training, and must not vanish."""
        self.failures[step] = f"{type(error).__name__}: {error}"
        get_logger(__name__).error("the scoring after step %d failed: %s", step, self.failures[step])
