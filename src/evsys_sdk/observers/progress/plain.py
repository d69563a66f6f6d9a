"""Progress as plain lines, for files, pipes, CI and agents.

[run-a] 120/200 (60%)  loss 0.4123  lr 1.0e-04  12.3k tok/s  0:28 left
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ...protocols import RunResult
from ...training.callback import EvalRecord, RunInfo
from .state import ProgressSnapshot
from .text import count, duration, number

_SHARE_OF_ELAPSED = 1 / 50
"""The longer a run, the rarer its lines: a day of training is still a few hundred of them."""


@dataclass(slots=True)
class PlainDisplay:
    """Writes a line now and then."""

    label: str
    every_seconds: float
    every_steps: int | None = None
    _began: float | None = None
    _last_line: float = 0.0

    def start(self, opening: str, snapshot: ProgressSnapshot) -> None:
        self._write(f"start: {opening}" if opening else "start")

    def update(self, snapshot: ProgressSnapshot, now: float) -> None:
        if self._is_due(snapshot, now):
            self._last_line = now
            self._write(progress_line(snapshot))

    def event(self, kind: str, label: str, text: str, step: int) -> None:
        self._write("  ".join(part for part in (f"step {step}", f"{kind} {label}", text) if part))

    def end(self, status: str, text: str) -> None:
        self._write(f"{status}: {text}")

    def _is_due(self, snapshot: ProgressSnapshot, now: float) -> bool:
        """The first step, the last one, and in between as often as was asked for."""
        if self._began is None:
            self._began = now
            return True
        if snapshot.done == snapshot.total:
            return True
        if self.every_steps is not None:
            return snapshot.done % self.every_steps == 0
        return now - self._last_line >= max(self.every_seconds, (now - self._began) * _SHARE_OF_ELAPSED)

    def _write(self, text: str) -> None:
        sys.stderr.write(f"[{self.label}] {text}\n")
        sys.stderr.flush()


def progress_line(snapshot: ProgressSnapshot) -> str:
    """How far, how well and how fast, in ASCII."""
    left, total = snapshot.seconds_left, snapshot.total
    steps = f"{snapshot.done}/{total} ({min(1, snapshot.done / total):.0%})" if total else f"step {snapshot.done}"
    ending = "" if left is None or snapshot.done == total else f"{duration(left)} left"
    return "  ".join(part for part in (steps, metrics_text(snapshot), ending) if part)


def metrics_text(snapshot: ProgressSnapshot) -> str:
    """`loss 0.4123  lr 1.0e-04  12.3k tok/s`."""
    parts = [
        f"{snapshot.headline} {number(snapshot.value)}" if snapshot.headline else "",
        *(f"{name} {number(value)}" for name, value in snapshot.others),
        "" if snapshot.learning_rate is None else f"lr {number(snapshot.learning_rate)}",
        "" if snapshot.tokens_per_second is None else f"{count(snapshot.tokens_per_second)} tok/s",
    ]
    return "  ".join(part for part in parts if part)


def describe_start(info: RunInfo) -> str:
    """`arithmetic, sft on mock, Qwen/Qwen3-4B, 200 steps`."""
    algorithm, backend = _entry(info.config, "algorithm", "kind"), _entry(info.config, "backend", "kind")
    parts = [
        info.experiment,
        f"{algorithm} on {backend}" if algorithm and backend else algorithm or backend,
        _entry(info.config, "model", "name"),
        "" if info.total_steps is None else f"{info.total_steps} steps",
        f"resumed after step {info.steps_done}" if info.steps_done else "",
    ]
    return ", ".join(part for part in parts if part)


def scores(record: EvalRecord, before: Mapping[str, float]) -> str:
    """`pass@1 0.4120 (+0.0310)  48 tasks`: the scores, how they changed since the last time, and on how many tasks."""
    texts: list[str] = []
    for name, value in record.metrics.items():
        if "/" in name or name == "tasks":  # standard errors and parts of a breakdown are for the record
            continue
        change = value - before.get(name, math.nan)
        moved = f" ({'+' if change >= 0 else '-'}{number(abs(change))})" if math.isfinite(change) else ""
        texts.append(f"{name} {number(value)}{moved}")
    tasks = record.metrics.get("tasks")
    counted = [] if tasks is None else [f"{tasks:.0f} task{'' if tasks == 1 else 's'}"]
    return "  ".join([*(texts or ["no score"]), *counted])


def eval_label(record: EvalRecord) -> str:
    """`val`, or `val/arithmetic` where the benchmark has a name."""
    return record.split if record.name == "" else f"{record.split}/{record.name}"


def describe_end(result: RunResult, snapshot: ProgressSnapshot, seconds: float, stop_reason: str | None) -> str:
    """`200 steps in 0:35, loss 2.3100 -> 0.4120`, and why it ended if not by itself."""
    parts = [f"{snapshot.done} step{'' if snapshot.done == 1 else 's'} in {duration(seconds)}"]
    if math.isfinite(snapshot.first_value):
        parts.append(f"{snapshot.headline} {number(snapshot.first_value)} -> {number(snapshot.value)}")
    if stop_reason:
        parts.append(f"stopped: {stop_reason}")
    if result.error and stop_reason not in result.error.strip().splitlines()[-1:]:
        parts.append(result.error.strip().splitlines()[-1])
    return ", ".join(parts)


def _entry(config: Mapping[str, Any], block: str, key: str) -> str:
    """`config[block][key]` as text; nothing where a config has no such block."""
    found = config.get(block)
    return str(cast(Mapping[str, Any], found).get(key, "")) if isinstance(found, Mapping) else ""
