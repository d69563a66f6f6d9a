"""Prints the progress of a run as plain lines on stderr. On a terminal, `evsys run` shows a live board instead.

[run-a] 120/200 (60%)  loss 0.4123  lr 0.0001  12.3k tok/s  28s left
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ...config.base import Strict
from ...history.text import count_text, duration_text, score_text
from ...protocols import RunResult
from ...record.run_files.metrics import TIMING
from ...record.values import part, text
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo

_SECONDS_BETWEEN_CHECKPOINTS = 1.0
"""Minimum interval between lines about checkpoints."""
_SHARE_OF_ELAPSED = 1 / 50
"""Interval of lines as a share of elapsed time: a day of training has a few hundred lines."""
_MEASURES = ("loss", "reward", "reward/mean", "score")
"""The first of these that a run logs is shown, unless the recipe names another metric."""


class PrintProgressConfig(Strict):
    """Params of the `print_progress` callback."""

    every_seconds: float = Field(default=10.0, gt=0)
    """Minimum interval between lines; it grows with elapsed time."""
    every_steps: int | None = Field(default=None, ge=1)
    """Print a line every this many steps instead."""
    metrics: list[str] = []
    """Metrics to show besides the recipe's own (loss, reward, ...), e.g. [grad_norm]."""


class PrintProgress(Callback):
    """Prints steps, loss or reward, speed, scores and checkpoints."""

    name = "print_progress"
    Config = PrintProgressConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = PrintProgressConfig(**params)
        self._clock = time.monotonic
        self._info: RunInfo | None = None
        self._control = RunControl()
        self._done = self._lines = 0
        self._began = self._line_at = self._tokens = 0.0
        self._measure, self._value, self._first = "", math.nan, math.nan
        self._scores: dict[str, Mapping[str, float]] = {}
        self._shown: set[tuple[str, int]] = set()
        """Label and step of printed evaluations."""
        self._saved_at = -math.inf

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self._info, self._control, self._done, self._began = info, control, info.steps_done, self._clock()
        self._write(f"start: {describe_start(info)}")

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = self._clock()
        self._done, self._tokens = step, self._tokens + float(metrics.get("tokens", 0.0))
        self._follow_measure(metrics)
        if self._is_due(now):
            self._line_at, self._lines = now, self._lines + 1
            self._write("  ".join(filter(None, self._describe_step(metrics, now - self._began))))

    def on_scored(self, record: EvalRecord) -> None:
        """Print a score as soon as it exists; `on_eval` comes at a fixed step."""
        label = f"{record.split}/{record.name}" if record.name else record.split
        before, self._scores[label] = self._scores.get(label, {}), record.metrics
        self._shown.add((label, record.step))
        self._write(f"step {record.step}  eval {label}  {describe_scores(record, before)}")

    def on_eval(self, record: EvalRecord) -> None:
        if (f"{record.split}/{record.name}" if record.name else record.split, record.step) not in self._shown:
            self.on_scored(record)

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        step, now = int(checkpoint.get("step", self._done)), self._clock()
        is_last = self._total is not None and step >= self._total
        if is_last or now - self._saved_at >= _SECONDS_BETWEEN_CHECKPOINTS:
            self._saved_at = now
            self._write(f"step {step}  checkpoint {checkpoint.get('name', '')}")

    def on_run_end(self, result: RunResult) -> None:
        reason = self._control.stop_reason
        parts = [f"{self._done} step{'' if self._done == 1 else 's'} in {duration_text(self._clock() - self._began)}"]
        if math.isfinite(self._first):
            parts.append(f"{self._measure} {score_text(self._first)} -> {score_text(self._value)}")
        parts += [f"stopped: {reason}"] if reason else []
        error = (result.error or "").strip().splitlines()[-1:]
        parts += error if error != [reason] else []
        self._write(f"{result.status}: {', '.join(parts)}")

    @property
    def _total(self) -> int | None:
        return self._info.total_steps if self._info else None

    def _is_due(self, now: float) -> bool:
        """Whether to print: at the first and last step, and at the configured interval."""
        if not self._lines or self._done == self._total:
            return True
        if self.cfg.every_steps is not None:
            return self._done % self.cfg.every_steps == 0
        return now - self._line_at >= max(self.cfg.every_seconds, (now - self._began) * _SHARE_OF_ELAPSED)

    def _follow_measure(self, metrics: Mapping[str, float]) -> None:
        """Update the shown metric to the best known name so far; an absent metric keeps its last value."""
        preferred = [name for name in ((self._info.measure if self._info else ""), *_MEASURES) if name]
        candidate = next(
            (name for name in (*preferred, *metrics) if name in metrics and not name.startswith(TIMING)), ""
        )
        rank = {name: at for at, name in enumerate(preferred)}
        if not self._measure or rank.get(candidate, len(preferred)) < rank.get(self._measure, len(preferred)):
            self._measure, self._first = candidate, math.nan
        if self._measure in metrics:
            self._value = float(metrics[self._measure])
            self._first = self._value if math.isnan(self._first) else self._first

    def _describe_step(self, metrics: Mapping[str, float], seconds: float) -> list[str]:
        done, total = self._done, self._total
        steps = done - (self._info.steps_done if self._info else 0)
        rate = metrics.get("learning_rate", metrics.get("lr"))
        left = seconds / steps * (total - done) if total and steps > 0 and seconds > 0 else 0.0
        return [
            f"{done}/{total} ({min(1, done / total):.0%})" if total else f"step {done}",
            f"{self._measure} {score_text(self._value)}" if self._measure else "",
            *(f"{name} {score_text(metrics[name])}" for name in self.cfg.metrics if name in metrics),
            "" if rate is None else f"lr {score_text(rate)}",
            f"{count_text(self._tokens / seconds)} tok/s" if self._tokens and seconds > 0 else "",
            f"{duration_text(left)} left" if left > 0 else "",
        ]

    def _write(self, line: str) -> None:
        sys.stderr.write(f"[{self._info.run_id if self._info else 'run'}] {line}\n")
        sys.stderr.flush()


def describe_start(info: RunInfo) -> str:
    """A summary such as `arithmetic, sft on mock, Qwen/Qwen3-4B, 200 steps`."""
    algorithm, backend = (text(part(info.config, block).get("kind")) for block in ("algorithm", "backend"))
    parts = [
        info.experiment,
        " on ".join(filter(None, (algorithm, backend))),
        text(part(info.config, "model").get("name")),
        "" if info.total_steps is None else f"{info.total_steps} steps",
        f"resumed after step {info.steps_done}" if info.steps_done else "",
    ]
    return ", ".join(filter(None, parts))


def describe_scores(record: EvalRecord, before: Mapping[str, float]) -> str:
    """A summary such as `pass@1 0.4120 (+0.0310)  48 tasks`: scores, changes and number of tasks."""
    texts: list[str] = []
    for name, value in record.metrics.items():
        if "/" in name or name == "tasks":  # standard errors and breakdowns are only in the record
            continue
        change = value - before.get(name, math.nan)
        change_text = f" ({'+' if change >= 0 else '-'}{score_text(abs(change))})" if math.isfinite(change) else ""
        texts.append(f"{name} {score_text(value)}{change_text}")
    tasks = record.metrics.get("tasks")
    counted = [] if tasks is None else [f"{tasks:.0f} task{'' if tasks == 1 else 's'}"]
    return "  ".join([*(texts or ["no score"]), *counted])
