"""The spend of an experiment: the records in `spend.jsonl`, and their sum.

Arms run in several threads and processes, each of which may be killed. Each appends small records to one file:

    {"arm": "sft__seed1", "at": 1760000000.0, "tokens_trained": 2048, "wall_s": 0.4, "key": "..."}

Spend never decreases: a step that a killed run repeats was paid for twice and counts twice. Records with the same `key`
count once. Time is the union of the intervals that records cover, so that parallel arms count once, and the pause
between a stop and a resume does not count.

    tally = read_tally(experiment_dir)
    tally.total().tokens, tally.of("sft__seed1").wall_s
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .layout import ExperimentFiles
from .values import number

SPEND_FILE = ExperimentFiles.spend.name
EXPERIMENT = ""
"""Arm name of records that belong to the whole experiment."""


@dataclass(frozen=True, slots=True)
class Spend:
    """Amounts of resources."""

    tokens_trained: int = 0
    tokens_sampled: int = 0
    """Tokens that models generated in rollouts, evaluations and baselines."""
    usd: float = 0.0
    """Cost of the priced part."""
    wall_s: float = 0.0
    gpu_s: float = 0.0
    unpriced: bool = False
    """Whether a part has no known price, so that `usd` is too low."""

    @property
    def tokens(self) -> int:
        """Trained plus sampled tokens."""
        return self.tokens_trained + self.tokens_sampled

    def __bool__(self) -> bool:
        return self != Spend()

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.tokens_trained + other.tokens_trained,
            self.tokens_sampled + other.tokens_sampled,
            self.usd + other.usd,
            self.wall_s + other.wall_s,
            self.gpu_s + other.gpu_s,
            self.unpriced or other.unpriced,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `usd` is null if a part has no price."""
        return {
            "tokens_trained": self.tokens_trained,
            "tokens_sampled": self.tokens_sampled,
            "usd": None if self.unpriced else round(self.usd, 9),
            "wall_s": round(self.wall_s, 3),
            "gpu_s": round(self.gpu_s, 3),
        }


@dataclass(slots=True)
class Intervals:
    """A union of time intervals."""

    starts: list[float] = field(default_factory=list[float])
    ends: list[float] = field(default_factory=list[float])
    length: float = 0.0

    def add(self, start: float, end: float) -> None:
        """Add an interval to the union."""
        # Intervals before `low` end before `start`, those from `high` on start after `end`; the others overlap.
        low = bisect_left(self.ends, start)
        high = bisect_right(self.starts, end)
        if low < high:
            start, end = min(start, self.starts[low]), max(end, self.ends[high - 1])
        self.length += (end - start) - sum(self.ends[at] - self.starts[at] for at in range(low, high))
        self.starts[low:high], self.ends[low:high] = [start], [end]


@dataclass(slots=True)
class _Account:
    spend: Spend = field(default_factory=Spend)
    clock: Intervals = field(default_factory=Intervals)

    def add(self, timeless: Spend, until: float, wall_s: float) -> None:
        """Add amounts to the sum, and time to the union of intervals."""
        self.spend += timeless
        if wall_s > 0:
            self.clock.add(until - wall_s, until)

    def copy(self) -> _Account:
        return _Account(self.spend, Intervals([*self.clock.starts], [*self.clock.ends], self.clock.length))

    @property
    def total(self) -> Spend:
        return replace(self.spend, wall_s=self.clock.length)


@dataclass(slots=True)
class Tally:
    """The sum of records, per arm and in total."""

    keys: set[str] = field(default_factory=set[str])
    """Keys of counted records, which must not count again."""
    forecast_s: float = 0.0
    """Expected seconds to end a run, with its scoring."""
    tail_s: float = 0.0
    """The longest time from the last step of a run to its scored end, in seconds."""
    deadline: float | None = None
    """When the process that runs the experiment has to stop training."""
    _accounts: dict[str, _Account] = field(default_factory=dict[str, _Account])
    _all: _Account = field(default_factory=_Account)

    def take(self, line: bytes) -> None:
        """Count one line of the file; damaged lines are skipped."""
        try:
            record: dict[str, Any] = json.loads(line)
            arm, at, spend = str(record["arm"]), float(record["at"]), _read_spend(record)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return
        key = record.get("key")
        # An infinite time would make the covered time infinite.
        if not isinstance(key, str | None) or key in self.keys or not math.isfinite(at):
            return
        if key is not None:
            self.keys.add(key)
        self.forecast_s = max(self.forecast_s, number(record.get("forecast_s")) or 0.0)
        self.tail_s = max(self.tail_s, number(record.get("tail_s")) or 0.0)
        if "deadline" in record:
            self.deadline = number(record["deadline"])
        timeless = replace(spend, wall_s=0.0)
        for account in (self._accounts.get(arm) or self._accounts.setdefault(arm, _Account()), self._all):
            account.add(timeless, at, spend.wall_s)

    def total(self) -> Spend:
        """The spend of all arms and the experiment."""
        return self._all.total

    def of(self, arm: str) -> Spend:
        """The spend of one arm."""
        return self._accounts.get(arm, _Account()).total

    def arms(self) -> list[str]:
        """The arms with records."""
        return [arm for arm in self._accounts if arm != EXPERIMENT]

    def copy(self) -> Tally:
        """An independent copy."""
        accounts = {arm: account.copy() for arm, account in self._accounts.items()}
        return Tally(set(self.keys), self.forecast_s, self.tail_s, self.deadline, accounts, self._all.copy())


def read_tally(experiment_dir: Path) -> Tally:
    """The spend on record in an experiment's folder; empty if the file cannot be read."""
    tally = Tally()
    try:
        with (experiment_dir / SPEND_FILE).open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # the last line may be half written
                    tally.take(line)
    except OSError:
        return Tally()
    return tally


def spend_line(arm: str, at: float, spend: Spend, *, key: str | None = None, **notes: Any) -> bytes:
    """A record as a line; zeros are left out, because there is a record per step.

    It begins with a newline too, so that half a line of a killed writer cannot corrupt it.
    """
    fields = {"tokens_trained": spend.tokens_trained, "tokens_sampled": spend.tokens_sampled, "usd": spend.usd}
    fields |= {"wall_s": spend.wall_s, "gpu_s": spend.gpu_s, "unpriced": spend.unpriced}
    counted = {name: value for name, value in fields.items() if value}
    record = {"arm": arm, "at": at, **counted, **notes} | ({"key": key} if key else {})
    return b"\n" + json.dumps(record).encode() + b"\n"


def _read_spend(record: dict[str, Any]) -> Spend:
    spend = Spend(
        int(record.get("tokens_trained", 0)),
        int(record.get("tokens_sampled", 0)),
        float(record.get("usd", 0.0)),
        float(record.get("wall_s", 0.0)),
        float(record.get("gpu_s", 0.0)),
        bool(record.get("unpriced", False)),
    )
    amounts = (spend.tokens_trained, spend.tokens_sampled, spend.usd, spend.wall_s, spend.gpu_s)
    if not all(math.isfinite(amount) and amount >= 0 for amount in amounts):
        raise ValueError("amounts of a spend record must be finite and not negative")
    return spend
