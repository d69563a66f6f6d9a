"""Stops a run that no longer improves.

callbacks:
  - { kind: early_stopping, params: { metric: val/loss, patience: 3 } }
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ...config.base import Strict
from ...errors import closest
from ...log import get_logger
from ...protocols import RunResult
from ...record.run_files.metrics import as_number
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo


class EarlyStoppingConfig(Strict):
    """Params of the `early_stopping` callback."""

    metric: str = Field(min_length=1)
    """Metric to watch: a training metric (`loss`) or a score (`val/pass@1`, `val/<benchmark>/pass@1`)."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher is better."""
    patience: int = Field(default=3, ge=1)
    """Number of consecutive values without an improvement."""
    min_delta: float = Field(default=0.0, ge=0)
    """Minimum change that counts as an improvement."""
    min_steps: int = Field(default=0, ge=0)
    """Never stop before this step."""


class EarlyStopping(Callback):
    """Stops the run when a metric stops improving."""

    name = "early_stopping"
    Config = EarlyStoppingConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = EarlyStoppingConfig(**params)
        self._control = RunControl()
        self._best: float | None = None
        self._best_step = 0
        self._since_best = 0
        self._followed: str | None = None
        self._seen: set[str] = set()

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._control = control

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._check(step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        named = record.named_metrics
        if self.cfg.metric not in named:
            # `val/pass@1` also matches the score of a named benchmark.
            short = {f"{record.split}/{name}": full for name, full in zip(record.metrics, named, strict=True)}
            full = short.get(self.cfg.metric)
            if full is not None and self._follows(full):
                named = {**named, self.cfg.metric: named[full]}
        self._check(record.step, named)

    def on_run_end(self, result: RunResult) -> None:
        """Warn if the metric was never logged, so the callback had no effect."""
        if self._seen and self.cfg.metric not in self._seen:
            guess = closest(self.cfg.metric, self._seen)
            get_logger(__name__).warning(
                "early_stopping: the metric '%s' was never logged%s Logged metrics: %s.",
                self.cfg.metric,
                f"; did you mean '{guess}'?" if guess else ".",
                ", ".join(sorted(self._seen)),
            )

    def state(self) -> dict[str, Any]:
        if self._best is None and not self._since_best:
            return {}
        return {
            "best": self._best,
            "best_step": self._best_step,
            "since_best": self._since_best,
            "followed": self._followed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._best, self._best_step = state["best"], state["best_step"]
        self._since_best, self._followed = state["since_best"], state["followed"]
        self._seen.add(self.cfg.metric)  # seen in an earlier attempt, so do not warn at the end

    def _follows(self, full: str) -> bool:
        """Whether to watch this score; of several benchmarks in a split, the first one."""
        if self._followed is None:
            self._followed = full
        elif self._followed != full and full not in self._seen:
            get_logger(__name__).warning(
                "early_stopping: '%s' names several scores; watching '%s', not '%s'. Write the full name.",
                self.cfg.metric,
                self._followed,
                full,
            )
        return self._followed == full

    def _check(self, step: int, metrics: Mapping[str, float]) -> None:
        self._seen.update(metrics)
        if self.cfg.metric not in metrics:
            return
        value = float(as_number(self.cfg.metric, metrics[self.cfg.metric]))
        if self._improves(value):
            self._best, self._best_step, self._since_best = value, step, 0
        else:
            self._since_best += 1
        if self._since_best >= self.cfg.patience and step >= self.cfg.min_steps:
            self._control.stop(self._reason())

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):  # counts against patience: a diverged run does not recover
            return False
        if self._best is None:
            return True
        gain = self._best - value if self.cfg.mode == "min" else value - self._best
        return gain > self.cfg.min_delta

    def _reason(self) -> str:
        times = "once" if self._since_best == 1 else f"{self._since_best} times in a row"
        if self._best is None:
            return f"early_stopping: {self.cfg.metric} was not a finite number {times}"
        return f"early_stopping: {self.cfg.metric} did not improve on {self._best:.6g} (step {self._best_step}) {times}"
