"""The fields of a view. `build.py` fills them; `docs/reference/api.md` and the page's types are made from them.

A `run` is one entry of a config, an `arm` is a run with one seed. Times are seconds since 1970, spend is in the units
that its keys name, and None means "not known", never zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from ..values import Note
from .question import Question

LIVE = ("running", "waiting")
"""Of an experiment that a process works on."""
STATUSES = (*LIVE, "killed", "completed", "failed", "interrupted", "budget", "damaged")
"""waiting: for an approval; killed: it has no end, and no process works on it; budget: stopped by its limit; damaged:
its config cannot be read."""
ARM_STATUSES = ("waiting", "running", "completed", "failed", "cancelled", "killed", "interrupted")
"""waiting: it has not started; cancelled: it stopped with a checkpoint because it was told to; killed and interrupted:
it started and left no result."""
VERDICTS = ("supported", "promising_unconfirmed", "inconclusive", "refuted", "invalid")

# Standard-library dataclasses, because a list of experiments must not wait for pydantic to be imported; the dashboard
# makes its schema from them. `frozen` is for pyright only: to make a frozen one takes four times as long.


@dataclass(frozen=TYPE_CHECKING, slots=True)
class Failure:
    """An arm that has no result to count on."""

    arm: str
    reason: str


@dataclass(frozen=TYPE_CHECKING, slots=True)
class Difference:
    """A run minus the baseline, with its simultaneous 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=TYPE_CHECKING, slots=True)
class ArmView:
    """One run with one seed."""

    arm: str
    run: str
    seed: int | None = None
    status: str = "waiting"
    """One of `ARM_STATUSES`."""
    problem: str = ""
    """Why its result cannot be counted on; empty when it can."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The last value of each metric."""
    score: float | None = None
    """Its value of the metric that decides."""
    score_step: int | None = None
    """The step of that score, where the arm has not come to its end."""
    step: int | None = None
    """The last step that it reached."""
    total_steps: int | None = None
    """How many it plans, as far as it is known; left out once it has ended."""
    spend: dict[str, float] = field(default_factory=dict[str, float])
    findings: list[str] = field(default_factory=list[str])
    """What was noticed about its training."""


@dataclass(frozen=TYPE_CHECKING, slots=True)
class RunView:
    """One run over its seeds: what it is, what it scored, and where its weights are."""

    run: str
    is_baseline: bool = False
    is_best: bool = False
    model: str = ""
    backend: str = ""
    algorithm: str = ""
    data: str = ""
    params: dict[str, str] = field(default_factory=dict[str, str])
    """Its settings by short name, as text."""
    varied: dict[str, Any] = field(default_factory=dict[str, Any])
    """Its values of the config paths in which the runs differ."""
    tasks: str = ""
    """What it was scored on: how many tasks, and the beginning of their hash; the data, for a training measure."""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    covers: str = ""
    """What its interval covers: `tasks` where no run has a second seed, else `tasks and seeds`."""
    step: int | None = None
    """The step of the score, where no seed came to its end."""
    selection_score: float | None = None
    """On the set that chooses among runs."""
    seed_scores: list[float] = field(default_factory=list[float])
    """One per scored seed."""
    n_seeds: int = 0
    n_tasks: int | None = None
    n_samples: int | None = None
    failures: int = 0
    """Seeds that failed or are not scored."""
    difference: Difference | None = None
    """Against the baseline, as the conclusion has it."""
    checkpoint: str = ""
    """Where its best weights are; of the best run of each model only."""
    n_arms: int = 0
    spend: dict[str, float] = field(default_factory=dict[str, float])
    """What all its seeds took."""


@dataclass(frozen=TYPE_CHECKING, slots=True)
class ExperimentView:
    """Everything that is known about one experiment, without what is large: scores by task, curves, rollouts."""

    id: str
    name: str
    path: str
    status: str
    """One of `STATUSES`."""
    started: float | None = None
    ended: float | None = None
    hypothesis: str = ""
    description: str = ""
    question: Question = field(default_factory=Question)
    verdict: str = ""
    """One of `VERDICTS`; empty without a conclusion."""
    sentence: str = ""
    """The verdict in one sentence."""
    next: str = ""
    """What its conclusion suggests."""
    error_rate: float | None = None
    """False positive rate at which its claim was tested; None without a claim or a conclusion."""
    same_evidence: str = ""
    """The earlier experiment with the same arms, seeds, data and tasks; this one is no further evidence."""
    metric: str = ""
    """Full name of the metric of its scores; that of the question, unless nothing was scored by that one yet."""
    mode: str = "max"
    baseline: str = ""
    best_run: str = ""
    best_score: float | None = None
    best_low: float | None = None
    best_high: float | None = None
    best_seeds: int = 0
    best_tasks: int | None = None
    best_covers: str = ""
    """What that interval covers: `tasks`, or `tasks and seeds`."""
    best_step: int | None = None
    """The step of that score, where the run did not come to its end."""
    runs: list[RunView] = field(default_factory=list[RunView])
    arms: list[ArmView] = field(default_factory=list[ArmView])
    n_runs: int = 0
    n_arms: int = 0
    n_seeds: int = 0
    n_done: int = 0
    """Arms that completed with everything scored."""
    failures: list[Failure] = field(default_factory=list[Failure])
    n_failures: int = 0
    spend: dict[str, float] = field(default_factory=dict[str, float])
    tags: list[str] = field(default_factory=list[str])
    parent_id: str = ""
    notes: list[Note] = field(default_factory=list[Note])
    invalidated: str = ""
    """Why it is excluded; empty when it is not."""
    flags: list[str] = field(default_factory=list[str])
    """The facts of its last audit that contradict its record."""
    remarks: list[str] = field(default_factory=list[str])
    """What is worth knowing and changes no verdict, such as training rows that resemble evaluation tasks."""
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

    @property
    def is_live(self) -> bool:
        """Whether a process works on it."""
        return self.status in LIVE

    @property
    def answer(self) -> float | None:
        """The best score, if it answers the question of the experiment and may be counted on."""
        return self.best_score if self.counts and self.metric == self.question.metric else None

    def run(self, name: str) -> RunView | None:
        return next((one for one in self.runs if one.run == name), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)

    def to_json(self) -> str:
        """As one line for the cache: the values of all fields, in their order."""
        return _COMPACT.encode(self)

    @classmethod
    def from_json(cls, line: str, **changes: Any) -> Self:
        """The view that `to_json` wrote, with `changes`; ValueError, TypeError or KeyError on anything else."""
        kept = dict(zip(cls.__slots__, json.loads(line), strict=True))
        kept["question"] = Question(*kept["question"])
        for name, kind in (("arms", ArmView), ("failures", Failure), ("notes", Note)):
            kept[name] = [kind(*one) for one in kept[name]]
        kept["runs"] = [_read_run(one) for one in kept["runs"]]
        return cls(**kept | changes)


def _read_run(values: list[Any]) -> RunView:
    fields = dict(zip(RunView.__slots__, values, strict=True))
    difference = fields.pop("difference")
    return RunView(**fields, difference=Difference(*difference) if difference else None)


@cache
def _make_reader(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*kind.__dataclass_fields__)


def _values(one: Any) -> tuple[Any, ...]:
    """The fields of a dataclass without their names, which a cache would hold thousands of times."""
    return _make_reader(one.__class__)(one)


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, default=_values)


def _plain(one: Any) -> dict[str, Any]:
    """The fields of a dataclass and of those in it; `asdict` copies all else too, and takes ten times as long."""
    found: dict[str, Any] = {}
    for name in one.__dataclass_fields__:  # also those of a base class, which `__slots__` lacks
        value = getattr(one, name)
        if isinstance(value, list):
            several = cast("list[Any]", value)
            value = [_plain(inner) for inner in several] if several and hasattr(several[0], "__slots__") else several
        elif hasattr(value, "__slots__"):
            value = _plain(value)
        found[name] = value
    return found
