"""The moments of a run worth a line of their own, the same on every display."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from ...protocols import RunResult
from ...training.callback import EvalRecord, RunInfo
from .state import Snapshot
from .text import duration, number


def opening(info: RunInfo) -> str:
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


def closing(result: RunResult, snapshot: Snapshot, seconds: float, stop_reason: str | None, arrow: str) -> str:
    """`200 steps in 0:35, loss 2.3100 -> 0.4120`, and why it ended if not by itself."""
    parts = [f"{snapshot.done} step{'' if snapshot.done == 1 else 's'} in {duration(seconds)}"]
    if math.isfinite(snapshot.first_value):
        parts.append(f"{snapshot.headline} {number(snapshot.first_value)} {arrow} {number(snapshot.value)}")
    if stop_reason:
        parts.append(f"stopped: {stop_reason}")
    if result.error and stop_reason not in result.error.strip().splitlines()[-1:]:
        parts.append(result.error.strip().splitlines()[-1])
    return ", ".join(parts)


def _entry(config: Mapping[str, Any], block: str, key: str) -> str:
    """`config[block][key]` as text; nothing where a config has no such block."""
    found = config.get(block)
    return str(cast(Mapping[str, Any], found).get(key, "")) if isinstance(found, Mapping) else ""
