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
"""Statuses of an experiment with a process."""
STATUSES = (*LIVE, "killed", "completed", "failed", "interrupted", "budget", "damaged")
"""waiting: for an approval; killed: no end and no process; budget: stopped by a limit; damaged: no readable config."""
ARM_STATUSES = ("waiting", "running", "completed", "failed", "cancelled", "killed", "interrupted")
"""waiting: not started; cancelled: stopped on request, with a checkpoint; killed, interrupted: started, no result."""
VERDICTS = ("supported", "promising_unconfirmed", "inconclusive", "refuted", "invalid")

# Standard-library dataclasses, because importing pydantic would slow down a list of experiments; the dashboard derives
# its schema from them. `frozen` is for pyright only: creating a frozen instance takes four times as long.


@dataclass(frozen=TYPE_CHECKING, slots=True)
class Failure:
    """An arm without a usable result."""

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
    """Why its result is unusable; empty if it is usable."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The last value of each metric."""
    score: float | None = None
    """Its value of the deciding metric."""
    score_step: int | None = None
    """The step of the score, if the arm has not completed."""
    step: int | None = None
    """Its last step."""
    total_steps: int | None = None
    """The planned number of steps, if it is known and the arm has not ended."""
    spend: dict[str, float] = field(default_factory=dict[str, float])
    findings: list[str] = field(default_factory=list[str])
    """Findings about its training."""


@dataclass(frozen=TYPE_CHECKING, slots=True)
class RunView:
    """One run over its seeds: its settings, scores and weights."""

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
    """Its values of the config paths in which runs differ."""
    tasks: str = ""
    """The number of its tasks and the beginning of their hash; for a training metric, its data."""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    covers: str = ""
    """The variance that its interval covers: `tasks` if no run has a second seed, else `tasks and seeds`."""
    step: int | None = None
    """The step of the score, if no seed has completed."""
    selection_score: float | None = None
    """Its score on the set that selects among runs."""
    seed_scores: list[float] = field(default_factory=list[float])
    """One per scored seed."""
    n_seeds: int = 0
    n_tasks: int | None = None
    n_samples: int | None = None
    failures: int = 0
    """Number of seeds that failed or are not scored."""
    difference: Difference | None = None
    """Difference to the baseline, from the conclusion."""
    checkpoint: str = ""
    """Its best weights; set for the best run of each model only."""
    n_arms: int = 0
    spend: dict[str, float] = field(default_factory=dict[str, float])
    """Spend of all seeds."""


@dataclass(frozen=TYPE_CHECKING, slots=True)
class ExperimentView:
    """The state of one experiment, without large data such as scores by task, curves and rollouts."""

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
    """The next steps that its conclusion suggests."""
    error_rate: float | None = None
    """False positive rate at which its claim was tested; None without a claim or a conclusion."""
    same_evidence: str = ""
    """An earlier experiment with the same arms, seeds, data and tasks; this one adds no evidence."""
    metric: str = ""
    """Full name of the metric of its scores; the question's metric, unless it has no scores yet."""
    mode: str = "max"
    baseline: str = ""
    best_run: str = ""
    best_score: float | None = None
    best_low: float | None = None
    best_high: float | None = None
    best_seeds: int = 0
    best_tasks: int | None = None
    best_covers: str = ""
    """The variance that the interval covers: `tasks`, or `tasks and seeds`."""
    best_step: int | None = None
    """The step of the best score, if the run has not completed."""
    runs: list[RunView] = field(default_factory=list[RunView])
    arms: list[ArmView] = field(default_factory=list[ArmView])
    n_runs: int = 0
    n_arms: int = 0
    n_seeds: int = 0
    n_done: int = 0
    """Number of completed and scored arms."""
    failures: list[Failure] = field(default_factory=list[Failure])
    n_failures: int = 0
    spend: dict[str, float] = field(default_factory=dict[str, float])
    tags: list[str] = field(default_factory=list[str])
    parent_id: str = ""
    notes: list[Note] = field(default_factory=list[Note])
    invalidated: str = ""
    """Why it is excluded; empty if it is not."""
    flags: list[str] = field(default_factory=list[str])
    """Contradictions in its record that its last audit found."""
    remarks: list[str] = field(default_factory=list[str])
    """Remarks that change no verdict, e.g. about training rows that resemble evaluation tasks."""
    models: list[str] = field(default_factory=list[str])
    algorithms: list[str] = field(default_factory=list[str])
    backends: list[str] = field(default_factory=list[str])
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    """Params of the best run's algorithm, or of the first run's."""
    varied: list[str] = field(default_factory=list[str])
    """Dotted paths of the settings that differ between its runs."""
    config_sha256: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def counts(self) -> bool:
        """Whether its score counts: it is not invalidated, invalid or flagged."""
        return not self.invalidated and not self.flags and self.verdict != "invalid"

    @property
    def is_live(self) -> bool:
        """Whether a process works on it."""
        return self.status in LIVE

    @property
    def answer(self) -> float | None:
        """The best score, if it is of the question's metric and the experiment counts."""
        return self.best_score if self.counts and self.metric == self.question.metric else None

    def run(self, name: str) -> RunView | None:
        return next((run for run in self.runs if run.run == name), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)

    def to_json(self) -> str:
        """The values of all fields in their order, as one line for the cache."""
        return _COMPACT.encode(self)

    @classmethod
    def from_json(cls, line: str, **changes: Any) -> Self:
        """The view from a line of `to_json`, with `changes`; ValueError, TypeError or KeyError for other lines."""
        fields = dict(zip(cls.__slots__, json.loads(line), strict=True))
        fields["question"] = Question(*fields["question"])
        for name, kind in (("arms", ArmView), ("failures", Failure), ("notes", Note)):
            fields[name] = [kind(*values) for values in fields[name]]
        fields["runs"] = [_read_run(values) for values in fields["runs"]]
        return cls(**fields | changes)


def _read_run(values: list[Any]) -> RunView:
    fields = dict(zip(RunView.__slots__, values, strict=True))
    difference = fields.pop("difference")
    return RunView(**fields, difference=Difference(*difference) if difference else None)


@cache
def _make_reader(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*kind.__dataclass_fields__)


def _values(instance: Any) -> tuple[Any, ...]:
    """The field values of a dataclass, without names to keep the cache small."""
    return _make_reader(instance.__class__)(instance)


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, default=_values)


def _plain(instance: Any) -> dict[str, Any]:
    """The fields of a nested dataclass. `asdict` also copies other values and takes ten times as long."""
    fields: dict[str, Any] = {}
    for name in instance.__dataclass_fields__:  # also those of a base class, which `__slots__` lacks
        value = getattr(instance, name)
        if isinstance(value, list):
            elements = cast("list[Any]", value)
            value = (
                [_plain(inner) for inner in elements] if elements and hasattr(elements[0], "__slots__") else elements
            )
        elif hasattr(value, "__slots__"):
            value = _plain(value)
        fields[name] = value
    return fields
