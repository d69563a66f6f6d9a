"""One experiment in a few fields: what lists, filters and digests are made of.

`summarize.py` makes it from a folder, `index.py` keeps it. Scores are those of the conclusion where there is one, else
plain means of the runs, in which case `verdict` is empty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..record.values import Note
from .effects import Contrast

STATUSES = ("running", "killed", "completed", "failed", "interrupted", "budget", "damaged")
"""running: a process works on it; killed: it has no end, and nobody works on it any more; budget: stopped by its limit;
damaged: its config cannot be read."""
VERDICTS = ("supported", "promising_unconfirmed", "inconclusive", "refuted", "invalid")


SPLITS = ("val", "eval", "test", "train_fit")
"""How names of scores begin; the earlier ones decide before the later ones."""
_OPENINGS = tuple(f"{split}/" for split in SPLITS)
_COUNTS = ("/stderr", "/tasks", "/failed_samples", "/unscored_tasks")
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """An arm that has no result to count on."""

    arm: str
    reason: str


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class RunResult:
    """One run of an experiment over its seeds: what it is, what it scored, and where its weights are."""

    run: str
    model: str
    algorithm: str
    tasks: str
    """What it was scored on: how many tasks, and the beginning of their hash; the data, for a training measure."""
    score: float | None
    low: float | None
    high: float | None
    covers: str
    seeds: int
    failures: int
    """Seeds that failed or are not scored."""
    step: int | None
    """The step of that score, where no seed came to its end."""
    params: dict[str, str]
    """Its settings by short name, as text."""
    data: str
    checkpoint: str
    """Where its best weights are; of the best run of each model only."""
    arms: int
    usd: float
    wall_s: float
    """What all its seeds took."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `RunRecord`
class ExperimentSummary:
    """What is known of one experiment without opening its folder."""

    id: str
    name: str
    path: str
    status: str
    started: float | None = None
    ended: float | None = None
    hypothesis: str = ""
    description: str = ""
    verdict: str = ""
    sentence: str = ""
    """Why that is the verdict."""
    next: str = ""
    """What its conclusion suggests."""
    metric: str = ""
    mode: str = "max"
    best_run: str = ""
    best_score: float | None = None
    best_low: float | None = None
    best_high: float | None = None
    best_seeds: int = 0
    best_tasks: int | None = None
    best_covers: str = ""
    """What that interval is about: `tasks`, or `tasks and seeds`."""
    best_step: int | None = None
    """The step of that score, where the run did not come to its end."""
    results: list[RunResult] = field(default_factory=list[RunResult])
    contrasts: list[Contrast] = field(default_factory=list[Contrast])
    """What each setting did that was changed alone."""
    n_runs: int = 0
    n_arms: int = 0
    n_seeds: int = 0
    n_done: int = 0
    """Arms that completed with everything scored."""
    failures: list[Failure] = field(default_factory=list[Failure])
    """The first few; `n_failures` counts all."""
    n_failures: int = 0
    spend: dict[str, float] = field(default_factory=dict[str, float])
    tags: list[str] = field(default_factory=list[str])
    parent_id: str = ""
    notes: list[Note] = field(default_factory=list[Note])
    invalidated: str = ""
    """Why it must not be believed; empty when nobody said so."""
    flags: list[str] = field(default_factory=list[str])
    """The checks of its last audit that its record did not pass."""
    models: list[str] = field(default_factory=list[str])
    algorithms: list[str] = field(default_factory=list[str])
    backends: list[str] = field(default_factory=list[str])
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    """Params of the best run's algorithm, or of the first run's."""
    varied: list[str] = field(default_factory=list[str])
    """What differs between its runs, as dotted paths into them."""
    config_sha256: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def counts(self) -> bool:
        """Whether it may be the best: invalidated, invalid and flagged ones never are."""
        return not self.invalidated and not self.flags and self.verdict != "invalid"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["failures"] = [{"arm": one.arm, "reason": one.reason} for one in self.failures]
        plain["results"] = [_shallow(one) for one in self.results]
        plain["contrasts"] = [_shallow(one) for one in self.contrasts]
        plain["notes"] = [{"text": one.text, "time": one.time, "author": one.author} for one in self.notes]
        return plain

    def to_json(self) -> str:
        """As one line, for the cache."""
        return _COMPACT.encode(self.to_dict())

    @classmethod
    def from_json(cls, line: str, **changes: Any) -> ExperimentSummary:
        """What `to_json` wrote, with `changes`; raises ValueError, TypeError or KeyError on anything else."""
        plain = json.loads(line) | changes
        plain["failures"] = [Failure(**one) for one in plain["failures"]]
        plain["results"] = [RunResult(**one) for one in plain["results"]]
        plain["contrasts"] = [Contrast(**one) for one in plain["contrasts"]]
        plain["notes"] = [Note(**one) for one in plain["notes"]]
        return cls(**plain)


def _shallow(one: RunResult | Contrast) -> dict[str, Any]:
    """Its fields; `asdict` copies what is in them, too, and takes ten times as long."""
    return {name: getattr(one, name) for name in one.__slots__}


def is_score(metric: str) -> bool:
    """Whether a metric is the score of a whole set of tasks or rows."""
    return metric.startswith(_OPENINGS) and not (metric.endswith(_COUNTS) or "=" in metric)
