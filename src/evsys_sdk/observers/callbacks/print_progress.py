"""Reports the progress of a run in plain lines on stderr. `evsys run` shows a board on a terminal instead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ...config.base import Strict
from ...protocols import RunResult
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo
from ..progress import plain
from ..progress.plain import PlainDisplay
from ..progress.state import ProgressSnapshot, ProgressState

_SECONDS_BETWEEN_CHECKPOINTS = 1.0
"""A quick run that saves at every step must not flood the screen; scores are all shown."""


class PrintProgressConfig(Strict):
    """Params of the `print_progress` callback."""

    every_seconds: float = Field(default=10.0, gt=0)
    """Lines are at least this far apart, and further as the run gets longer."""
    every_steps: int | None = Field(default=None, ge=1)
    """Write a line every this many steps instead."""
    metrics: list[str] = []
    """Further metrics to show next to what the recipe gets on by (loss, reward, ...), e.g. [grad_norm]."""


class PrintProgress(Callback):
    """Shows steps, loss or reward, speed, scores and checkpoints while the run continues."""

    name = "print_progress"
    Config = PrintProgressConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = PrintProgressConfig(**params)
        self._clock = time.monotonic
        self._control = RunControl()
        self._display: PlainDisplay | None = None
        self._state = ProgressState(total=None)
        self._snapshot = ProgressSnapshot()
        self._began = 0.0
        self._scores: dict[str, Mapping[str, float]] = {}
        self._shown: set[tuple[str, int]] = set()
        """Scorings by label and step."""
        self._saved_at = -1e9  # long ago, so that the first one is shown

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._control = control
        self._began = self._clock()
        self._state = ProgressState(info.total_steps, info.steps_done, self.cfg.metrics, info.measure)
        self._snapshot = self._state.start(self._began)
        self._display = PlainDisplay(info.run_id, self.cfg.every_seconds, self.cfg.every_steps)
        self._display.start(plain.describe_start(info), self._snapshot)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = self._clock()
        self._snapshot = self._state.observe(step, metrics, now)
        if self._display is not None:
            self._display.update(self._snapshot, now)

    def on_scored(self, record: EvalRecord) -> None:
        """Show a score when it is there; the run itself hears of it at a fixed step."""
        label = plain.eval_label(record)
        before, self._scores[label] = self._scores.get(label, {}), record.metrics
        self._shown.add((label, record.step))
        if self._display is not None:
            self._display.event("eval", label, plain.scores(record, before), record.step)

    def on_eval(self, record: EvalRecord) -> None:
        if (plain.eval_label(record), record.step) not in self._shown:
            self.on_scored(record)

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        step, now = int(checkpoint.get("step", self._snapshot.done)), self._clock()
        is_last = self._snapshot.total is not None and step >= self._snapshot.total
        if self._display is not None and (is_last or now - self._saved_at >= _SECONDS_BETWEEN_CHECKPOINTS):
            self._saved_at = now
            self._display.event("checkpoint", str(checkpoint.get("name", "")), "", step)

    def on_run_end(self, result: RunResult) -> None:
        if self._display is not None:
            seconds = self._clock() - self._began
            text = plain.describe_end(result, self._snapshot, seconds, self._control.stop_reason)
            self._display.end(result.status, text)
