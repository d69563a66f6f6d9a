"""Progress as plain lines, for files, pipes, CI and agents.

[run-a] 120/200 (60%)  loss 0.4123 falling  lr 1.0e-04  12.3k tok/s  0:28 left
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from .state import Snapshot
from .text import count, duration, number

_SHARE_OF_ELAPSED = 1 / 50
"""The longer a run, the rarer its lines: a day of training is still a few hundred of them."""


@dataclass(slots=True)
class PlainDisplay:
    """Writes a line now and then."""

    label: str
    every_seconds: float
    every_steps: int | None = None
    arrow: str = "->"
    _began: float | None = None
    _last_line: float = 0.0

    def start(self, opening: str, snapshot: Snapshot) -> None:
        self._write(f"start: {opening}" if opening else "start")

    def update(self, snapshot: Snapshot, now: float) -> None:
        if self._is_due(snapshot, now):
            self._last_line = now
            self._write(progress_line(snapshot))

    def event(self, kind: str, label: str, text: str, step: int) -> None:
        self._write("  ".join(part for part in (f"step {step}", f"{kind} {label}", text) if part))

    def end(self, status: str, text: str) -> None:
        self._write(f"{status}: {text}")

    def stop(self) -> None:
        """Nothing is held."""

    def _is_due(self, snapshot: Snapshot, now: float) -> bool:
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
        # Looked up each time, because a live display of another run may have taken its place.
        sys.stderr.write(f"[{self.label}] {text}\n")
        sys.stderr.flush()


def progress_line(snapshot: Snapshot) -> str:
    """How far, how well and how fast, in ASCII."""
    left = snapshot.seconds_left
    parts = [
        f"{snapshot.done}/{snapshot.total} ({snapshot.fraction or 0:.0%})"
        if snapshot.total
        else f"step {snapshot.done}",
        f"{snapshot.headline} {number(snapshot.value)} {_trend(snapshot)}".rstrip() if snapshot.headline else "",
        *(f"{name} {number(value)}" for name, value in snapshot.others),
        "" if snapshot.learning_rate is None else f"lr {number(snapshot.learning_rate)}",
        "" if snapshot.tokens_per_second is None else f"{count(snapshot.tokens_per_second)} tok/s",
        "" if left is None or snapshot.done == snapshot.total else f"{duration(left)} left",
    ]
    return "  ".join(part for part in parts if part)


def _trend(snapshot: Snapshot) -> str:
    return {-1: "falling", 0: "", 1: "rising"}[snapshot.trend]
