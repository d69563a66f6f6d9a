"""What a progress display shows of a run: steps, speed and the headline metric."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...record.run_files.metrics import TIMING

_HEADLINES = ("loss", "reward", "reward/mean", "score")
"""The first of these that a run logs is its headline metric, unless the recipe names another one."""
_LEARNING_RATES = ("learning_rate", "lr")
_TOKEN_RATES = ("time/tokens_per_s", "tokens_per_second", "tokens_per_s")
_RECENT_STEPS = 30
"""Speed is measured over the last steps, because the first ones are often slower."""


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The state after one step."""

    done: int = 0
    total: int | None = None
    headline: str = ""
    value: float = math.nan
    first_value: float = math.nan
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    """Further metrics that the user asked for."""

    @property
    def seconds_left(self) -> float | None:
        if not self.total or not self.steps_per_second:
            return None
        return max(0, self.total - self.done) / self.steps_per_second


@dataclass(slots=True)
class ProgressState:
    """Makes a snapshot of each step."""

    total: int | None
    steps_done: int = 0
    wanted: Sequence[str] = ()
    """Names of further metrics to show."""
    measure: str = ""
    """The metric that the recipe improves."""
    _headline: str = ""
    _value: float = math.nan
    _first: float = math.nan
    _times: deque[tuple[float, int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def start(self, now: float) -> ProgressSnapshot:
        """The state before the first step."""
        self._times.append((now, self.steps_done, 0.0))
        return ProgressSnapshot(done=self.steps_done, total=self.total)

    def observe(self, step: int, metrics: Mapping[str, float], now: float) -> ProgressSnapshot:
        """The state after a step."""
        self._times.append((now, step, float(metrics.get("tokens", 0.0))))
        self._choose_headline(metrics)
        if self._headline in metrics:  # a step without it, as after an empty batch, keeps the last value
            self._value = float(metrics[self._headline])
            if math.isnan(self._first) and math.isfinite(self._value):
                self._first = self._value
        steps_per_second, tokens_per_second = self._speed()
        measured, rate = _first_of(_TOKEN_RATES, metrics), _first_of(_LEARNING_RATES, metrics)
        return ProgressSnapshot(
            done=step,
            total=self.total,
            headline=self._headline,
            value=self._value,
            first_value=self._first,
            learning_rate=float(metrics[rate]) if rate else None,
            tokens_per_second=tokens_per_second or (metrics[measured] if measured else None),
            steps_per_second=steps_per_second,
            others=tuple((name, float(metrics[name])) for name in self.wanted if name in metrics),
        )

    def _choose_headline(self, metrics: Mapping[str, float]) -> None:
        """The best known name so far; a metric of the first step gives way to a known one."""
        known = (self.measure, *_HEADLINES)
        found = _first_of(known, metrics) or next((name for name in metrics if not name.startswith(TIMING)), "")
        better = found == self.measure != self._headline or (found in known and self._headline not in known)
        if not self._headline or better:
            self._headline, self._first = found, math.nan

    def _speed(self) -> tuple[float | None, float | None]:
        (begin, first, _), (end, last, _) = self._times[0], self._times[-1]
        if end <= begin or last <= first:
            return None, None
        # Without the tokens of the first entry: its step ended when the time begins.
        tokens = sum(count for _, _, count in list(self._times)[1:])
        return (last - first) / (end - begin), tokens / (end - begin) or None


def _first_of(names: Sequence[str], metrics: Mapping[str, float]) -> str | None:
    return next((name for name in names if name in metrics), None)


def is_live_terminal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether stderr is an interactive UTF-8 terminal that can be redrawn."""
    environment = os.environ if environment is None else environment
    is_dumb = environment.get("TERM", "dumb") in ("dumb", "unknown")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    shares_terminal = environment.get("EVSYS_ARM_WORKER")  # with the processes of other arms
    plain = is_dumb or is_ci or shares_terminal or environment.get("NO_COLOR")
    return sys.stderr.isatty() and not plain and sys.stderr.encoding.lower().startswith("utf")
