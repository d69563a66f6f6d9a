"""The data model of a conclusion: plain values, stored in `conclusion.json`.

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
_DIGITS = 7
"""Significant digits to write; further digits differ between machines."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Scores of one run over all its seeds, on the reported set."""

    name: str
    mean: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval of the mean, with task, seed and missing-sample uncertainty."""
    high: float | None = None
    n_seeds: int = 0
    """Number of seeds with a score."""
    n_tasks: int | None = None
    selection_score: float | None = None
    """Mean on the selection set."""
    failures: int = 0
    """Number of seeds that failed or are not scored."""
    failed_samples: int = 0
    tokens: int | None = None
    """Trained and sampled tokens of all seeds."""
    usd: float | None = None
    is_baseline: bool = False
    seeds: list[int] = field(default_factory=list[int])
    by_seed: list[float] = field(default_factory=list[float])
    """Scores in the order of `seeds`."""
    differs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings that differ between runs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run minus the baseline, paired by task."""

    run: str
    difference: float
    low: float | None = None
    """Lower end of the simultaneous interval over all compared runs; it covers all values of missing samples."""
    high: float | None = None
    p: float | None = None
    """p-value adjusted by Holm's method, with the least favourable values of missing samples."""


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Seed variance: two runs of one recipe differ by less than `difference` in 19 of 20 cases."""

    seed_sd: float
    difference: float


@dataclass(frozen=True, slots=True)
class Population:
    """The evaluated tasks."""

    source: str | None
    """File or id of the tasks."""
    n_tasks: int | None
    n_clusters: int | None
    """Number of clusters; None if the tasks are not clustered."""
    samples_per_task: float | None


@dataclass(frozen=True, slots=True)
class Trend:
    """The linear trend of the metric along an axis."""

    axis: str
    first: float
    last: float
    """`first` and `last`: the lowest and highest value of the axis."""
    change: float
    """Change of the fitted line from `first` to `last`."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Sequential:
    """The state of an experiment with interim analyses, which ends as soon as its claim is decided."""

    looks: list[int]
    """Planned seeds per run at each interim analysis."""
    look: int
    """Number of the interim analysis that was reached, from 1."""
    seeds: int
    outcome: str
    """`decided`, `futile`, `seeds are missing`, `all seeds were needed`, or `aborted`."""
    error: float
    """False positive rate of this interim analysis."""
    chance: float | None = None
    """Probability of support at the last analysis, as estimated then; None if unknown."""


RULES = 9
"""Version of the rules and of the file format."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of an experiment: its verdict with the evidence and its limits."""

    experiment: str
    verdict: Verdict
    summary: str
    """The verdict in one sentence."""
    reasons: list[str]
    """Why the verdict is not stronger."""
    hypothesis: dict[str, Any] | None = None
    hypothesis_sha256: str | None = None
    registered: bool = False
    """Whether the claim equals the one registered in the journal before the first step."""
    metric: str | None = None
    """Full name of the reported metric."""
    mode: Literal["max", "min"] | None = None
    """Whether a higher or a lower value is better."""
    selection: str | None = None
    """The benchmark for selection among the runs."""
    report_sha256: str | None = None
    """sha256 of the reported tasks."""
    baseline: str | None = None
    baseline_is: str | None = None
    """Why this is the baseline."""
    judged: str | None = None
    """The run whose difference decides the claim."""
    best_arm: str | None = None
    best_score: float | None = None
    runs: list[RunSummary] = field(default_factory=list[RunSummary])
    comparisons: list[Comparison] = field(default_factory=list[Comparison])
    noise_floor: NoiseFloor | None = None
    smallest_detectable: float | None = None
    """Minimum detectable effect (80 % power)."""
    looks: Looks | None = None
    """Numbers of evaluations on the test set."""
    not_scored: dict[str, str] = field(default_factory=dict[str, str])
    threats: list[str] = field(default_factory=list[str])
    next: list[str] = field(default_factory=list[str])
    rule: str | None = None
    """The decision rule for the claim."""
    error_rate: float | None = None
    """Maximum false positive rate, if all runs have equal noise."""
    attempt: int | None = None
    """Trial number of the claim; None if trials are not counted."""
    population: Population | None = None
    flags: list[str] = field(default_factory=list[str])
    """Flags of the audit when the conclusion was written."""
    backend: str = ""
    """Backend of all runs; empty if they differ."""
    trend: Trend | None = None
    identity: dict[str, str] = field(default_factory=dict[str, str])
    """Model, verifiers and packages, as recorded."""
    deviations: list[str] = field(default_factory=list[str])
    sequential: Sequential | None = None
    """Interim analyses; None if none was planned."""
    schema_version: int = RULES

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; the same record always gives the same bytes."""
        return {"schema_version": self.schema_version, **_round(asdict(self))}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @property
    def sha256(self) -> str:
        """sha256 of `conclusion.json`."""
        return sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conclusion:
        """Parse a stored conclusion; raise ValueError for other data."""
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
