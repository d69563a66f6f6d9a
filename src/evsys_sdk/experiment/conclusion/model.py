"""What a conclusion holds: plain values that are written to `conclusion.json` and read back.

conclusion = conclude(Path("outputs/tools"))
conclusion.verdict, conclusion.best_arm, conclusion.best_score
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal

from pydantic import TypeAdapter

from .evidence import Looks

type Verdict = Literal["supported", "refuted", "inconclusive", "promising_unconfirmed", "invalid"]
VERDICTS: tuple[Verdict, ...] = ("supported", "refuted", "inconclusive", "promising_unconfirmed", "invalid")
_DIGITS = 7
"""Significant digits that are written; what lies beyond them differs from machine to machine."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run over all its seeds, on the set that is reported."""

    name: str
    mean: float | None = None
    low: float | None = None
    """95 % interval of the mean, over tasks and seeds, and over all that samples without a score may have been."""
    high: float | None = None
    n_seeds: int = 0
    """Seeds with a score."""
    n_tasks: int | None = None
    n_samples: int = 0
    selection_score: float | None = None
    """Its mean on the set that chooses among runs."""
    failures: int = 0
    """Seeds that failed or are not scored."""
    failed_samples: int = 0
    tokens: int | None = None
    """Trained on and sampled, over all seeds."""
    usd: float | None = None
    is_baseline: bool = False
    seeds: list[int] = field(default_factory=list[int])
    by_seed: list[float] = field(default_factory=list[float])
    """The score of each seed, in the order of `seeds`."""
    differs: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings that are not the same in all runs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run minus the baseline, task by task."""

    run: str
    difference: float
    low: float | None = None
    """Interval that holds for all compared runs together, however the samples without a score would have been."""
    high: float | None = None
    p: float | None = None
    """Adjusted by Holm's method; of what is missing, the least favourable counts."""


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Two runs of one recipe differ by less than `difference` in 19 of 20 cases, by the choice of seeds alone."""

    seed_sd: float
    difference: float


@dataclass(frozen=True, slots=True)
class Population:
    """What the numbers are about."""

    source: str | None
    """File or id of the tasks."""
    n_tasks: int | None
    n_clusters: int | None
    """None where every task stands for itself."""
    samples_per_task: float | None


@dataclass(frozen=True, slots=True)
class Trend:
    """How the metric moves along an axis."""

    axis: str
    first: float
    last: float
    """Lowest and highest value of the axis."""
    change: float
    """Of the fitted line, from the lowest value to the highest."""
    low: float | None
    high: float | None
    values: dict[str, float] = field(default_factory=dict[str, float])
    """Value of the axis -> mean score of its runs."""
    runs: list[str] = field(default_factory=list[str])
    """Runs that it rests on."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """How far an experiment went that was to end as soon as its claim is decided."""

    looks: list[int]
    """Seeds of each run at which the claim was planned to be judged."""
    look: int
    """Which of them was the last one, counted from 1."""
    seeds: int
    outcome: str
    """`decided`, `futile`, `seeds are missing`, `all seeds were needed`, or `aborted`."""
    error: float
    """At which this look was tested by itself."""
    arms: int
    arms_planned: int
    chance: float | None = None
    """Of being supported at the last look, as it looked then; None where that is not known."""


RULES = 8
"""Version of how conclusions are drawn and written."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What an experiment showed, and how far that can be believed."""

    experiment: str
    verdict: Verdict
    summary: str
    """The verdict in one sentence."""
    reasons: list[str]
    """Why not more than that."""
    hypothesis: dict[str, Any] | None = None
    hypothesis_sha256: str | None = None
    registered: bool = False
    """Whether the claim is the one that the journal holds from before the first step."""
    metric: str | None = None
    """Full name of the reported metric."""
    mode: Literal["max", "min"] | None = None
    """Whether more or less of it is better."""
    selection: str | None = None
    """What chose among the runs."""
    report_sha256: str | None = None
    """Of the tasks that are reported."""
    baseline: str | None = None
    baseline_is: str | None = None
    """Why that is the baseline."""
    judged: str | None = None
    """The run whose difference decides about the claim."""
    best_arm: str | None = None
    best_score: float | None = None
    runs: list[RunSummary] = field(default_factory=list[RunSummary])
    comparisons: list[Comparison] = field(default_factory=list[Comparison])
    n_compared: int = 0
    noise_floor: NoiseFloor | None = None
    smallest_detectable: float | None = None
    """Minimum detectable effect (80 % power)."""
    looks: Looks | None = None
    """Evaluations on the test set."""
    not_scored: dict[str, str] = field(default_factory=dict[str, str])
    threats: list[str] = field(default_factory=list[str])
    next: list[str] = field(default_factory=list[str])
    rule: str | None = None
    """What had to be seen, as it was fixed before the first step."""
    error_rate: float | None = None
    """False positive rate at most, where all runs are equally noisy."""
    attempt: int | None = None
    """Which trial of the claim this is; None where no one counts."""
    population: Population | None = None
    flags: list[str] = field(default_factory=list[str])
    """Facts that the audit of the record flagged when this was written."""
    backend: str = ""
    """Where all runs were trained."""
    extremes: list[str] = field(default_factory=list[str])
    """Ceiling, floor, and scores that do not vary."""
    trend: Trend | None = None
    identity: dict[str, str] = field(default_factory=dict[str, str])
    """Model, verifier, code, as far as the record names them."""
    deviations: list[str] = field(default_factory=list[str])
    sequential: Sequential | None = None
    """None where all seeds were to be trained before the claim is judged."""
    schema_version: int = RULES

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; the same record always gives the same bytes."""
        return {"schema_version": self.schema_version, **_round(asdict(self))}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @property
    def sha256(self) -> str:
        """Of `conclusion.json`."""
        return sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conclusion:
        """The conclusion that was written; raises ValueError for anything else."""
        return TypeAdapter(Conclusion).validate_python({"schema_version": 1, **data})

    def comparison(self, run: str | None) -> Comparison | None:
        return next((one for one in self.comparisons if one.run == run), None)

    def run(self, name: str | None) -> RunSummary | None:
        return next((one for one in self.runs if one.name == name), None)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_round(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return value
