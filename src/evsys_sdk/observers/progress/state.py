"""What a progress display knows about a run: how far, how fast, how well. Nothing here draws anything."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

_HEADLINES = ("loss", "reward", "reward/mean", "score")
"""The first of these that a run logs is its headline number, unless the recipe names another one."""
_LEARNING_RATES = ("learning_rate", "lr")
_TOKEN_RATES = ("time/tokens_per_s", "tokens_per_second", "tokens_per_s")
_RECENT_STEPS = 30
"""Speed is measured over the last steps, because the first ones are often slower."""
_CURVE_POINTS = 64  # even, because points are joined in pairs
_TREND_STEPS = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one step; immutable, so that the drawing thread can hold on to it."""

    done: int = 0
    total: int | None = None
    headline: str = ""
    value: float = math.nan
    first_value: float = math.nan
    trend: int = 0
    """-1 falling, +1 rising, 0 neither."""
    curve: tuple[float, ...] = ()
    """The headline number over the whole run, averaged into few points."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    """Further metrics that were asked for."""
    less_is_better: bool | None = None
    """Of the headline, where the recipe says; None goes by its name."""

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def is_improving(self) -> bool:
        """A loss should fall and a reward rise; of other headlines the recipe knows."""
        less = "loss" in self.headline if self.less_is_better is None else self.less_is_better
        return self.trend == (-1 if less else 1)

    @property
    def seconds_left(self) -> float | None:
        if not self.total or not self.steps_per_second:
            return None
        return max(0, self.total - self.done) / self.steps_per_second


@dataclass(slots=True)
class ProgressState:
    """Takes in steps, gives out snapshots."""

    total: int | None
    steps_done: int = 0
    wanted: Sequence[str] = ()
    """Names of further metrics to show."""
    measure: str = ""
    """What the recipe gets on by ..."""
    less_is_better: bool | None = None
    """... and whether less of it is better."""
    _headline: str = ""
    _value: float = math.nan
    _first: float = math.nan
    _times: deque[tuple[float, int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=2 * _TREND_STEPS))
    _curve: list[float] = field(default_factory=list[float])
    _bucket: list[float] = field(default_factory=list[float])
    _bucket_size: int = 1

    def start(self, now: float) -> Snapshot:
        """The state before the first step."""
        self._times.append((now, self.steps_done, 0.0))
        return Snapshot(done=self.steps_done, total=self.total)

    def observe(self, step: int, metrics: Mapping[str, float], now: float) -> Snapshot:
        """Take in one step."""
        self._times.append((now, step, float(metrics.get("tokens", 0.0))))
        self._choose_headline(metrics)
        if self._headline in metrics:  # a step without it, as after an empty batch, leaves the last one standing
            self._value = float(metrics[self._headline])
            if math.isfinite(self._value):
                self._remember(self._value)
        steps_per_second, tokens_per_second = self._speed()
        measured, rate = _first_of(_TOKEN_RATES, metrics), _first_of(_LEARNING_RATES, metrics)
        return Snapshot(
            done=step,
            total=self.total,
            headline=self._headline,
            value=self._value,
            first_value=self._first,
            trend=self._trend(),
            curve=(*self._curve, *([sum(self._bucket) / len(self._bucket)] if self._bucket else [])),
            learning_rate=float(metrics[rate]) if rate else None,
            tokens_per_second=tokens_per_second or (metrics[measured] if measured else None),
            steps_per_second=steps_per_second,
            others=tuple((name, float(metrics[name])) for name in self.wanted if name in metrics),
            less_is_better=self.less_is_better if self._headline == self.measure else None,
        )

    def _choose_headline(self, metrics: Mapping[str, float]) -> None:
        """The best known name so far; a curve of something less telling is dropped when a better one appears."""
        known = (self.measure, *_HEADLINES)
        found = _first_of(known, metrics) or next((name for name in metrics if not name.startswith("time/")), "")
        better = found == self.measure != self._headline or (found in known and self._headline not in known)
        if not self._headline or better:
            self._headline, self._first, self._bucket_size = found, math.nan, 1
            self._curve, self._bucket = [], []
            self._recent.clear()

    def _remember(self, value: float) -> None:
        """Add a point to the curve; when it has too many, each takes in twice as many steps as before."""
        if math.isnan(self._first):
            self._first = value
        self._recent.append(value)
        self._bucket.append(value)
        if len(self._bucket) < self._bucket_size:
            return
        self._curve.append(sum(self._bucket) / len(self._bucket))
        self._bucket = []
        if len(self._curve) >= _CURVE_POINTS:
            self._curve = [(a + b) / 2 for a, b in zip(self._curve[::2], self._curve[1::2], strict=True)]
            self._bucket_size *= 2

    def _trend(self) -> int:
        """Compare the later half of the recent values with the earlier, in units of their scatter."""
        values = list(self._recent)
        half = len(values) // 2
        if half < 2:
            return 0
        early, late = values[:half], values[-half:]
        change = sum(late) / half - sum(early) / half
        scatter = math.sqrt((_variance(early) + _variance(late)) / half)
        # values that are all the same have no scatter, and rounding is no trend
        return 0 if abs(change) <= max(scatter, 1e-12) else int(math.copysign(1, change))

    def _speed(self) -> tuple[float | None, float | None]:
        (begin, first, _), (end, last, _) = self._times[0], self._times[-1]
        if end <= begin or last <= first:
            return None, None
        # without those of the first: its step ended when the time begins
        tokens = sum(count for _, _, count in list(self._times)[1:])
        return (last - first) / (end - begin), tokens / (end - begin) or None


def _first_of(names: Sequence[str], metrics: Mapping[str, float]) -> str | None:
    return next((name for name in names if name in metrics), None)


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


# What a progress display must be able to do, and which one suits the place the run is started from.

type Style = Literal["auto", "live", "plain"]


class Display(Protocol):
    """Shows one run on stderr."""

    arrow: str
    """How `from -> to` is drawn here."""

    def start(self, opening: str, snapshot: Snapshot) -> None: ...
    def update(self, snapshot: Snapshot, now: float) -> None: ...
    def event(self, kind: str, label: str, text: str, step: int) -> None: ...
    def end(self, status: str, text: str) -> None: ...
    def stop(self) -> None: ...


def is_live_terminal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether stderr is a terminal that a person watches, that can be redrawn and that knows more than ASCII."""
    environment = os.environ if environment is None else environment
    is_dumb = environment.get("TERM", "dumb") in ("dumb", "unknown")
    is_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    shares_terminal = environment.get("EVSYS_ARM_WORKER")  # with the processes of other arms
    plain = is_dumb or is_ci or shares_terminal or environment.get("NO_COLOR")
    return sys.stderr.isatty() and not plain and sys.stderr.encoding.lower().startswith("utf")
