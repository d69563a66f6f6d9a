"""What a conclusion holds: plain values that are written to `conclusion.json` and read back.

conclusion = conclude(Path("outputs/tools"))
conclusion.verdict, conclusion.best_arm, conclusion.best_score
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, Literal, Self

type Verdict = Literal["supported", "refuted", "inconclusive", "promising_unconfirmed", "invalid"]
VERDICTS: tuple[Verdict, ...] = ("supported", "refuted", "inconclusive", "promising_unconfirmed", "invalid")
_DIGITS = 7
"""Significant digits that are written; what lies beyond them differs from machine to machine."""


class _Readable:
    """A dataclass that can be made from the JSON of itself; keys of later versions are passed over."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        names = {one.name for one in fields(cls)}  # pyright: ignore[reportArgumentType]
        return cls(**{name: value for name, value in data.items() if name in names})


@dataclass(frozen=True, slots=True)
class RunSummary(_Readable):
    """One run over all its seeds, on the set that is reported."""

    name: str
    mean: float | None
    low: float | None
    """95 % interval of the mean, over tasks and seeds, and over all that samples without a score may have been."""
    high: float | None
    seed_sd: float | None
    """How far its seeds lie apart."""
    n_seeds: int
    """Seeds with a score."""
    n_tasks: int | None
    n_samples: int
    selection_score: float | None
    """Its mean on the set that chooses among runs."""
    failures: int
    """Seeds that failed or are not scored."""
    failed_samples: int
    tokens: int | None
    """Trained on and sampled, over all seeds."""
    usd: float | None
    is_baseline: bool = False
    seeds: list[int] = field(default_factory=list[int])
    by_seed: list[float] = field(default_factory=list[float])
    """The score of each seed, in the order of `seeds`."""
    differs: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings that are not the same in all runs."""
    tokens_per_arm: float | None = None
    """Of its median arm."""
    usd_per_arm: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison(_Readable):
    """One run minus the baseline, task by task."""

    run: str
    difference: float
    low: float | None
    """95 % interval that holds for all compared runs together, however the samples without a score would have been."""
    high: float | None
    plain_low: float | None
    """95 % interval of this comparison alone."""
    plain_high: float | None
    p: float | None
    """How often luck alone would make some run differ this much; of what is missing, the least favourable counts."""
    df: float | None
    scored_low: float | None = None
    """The interval of what was scored alone, as if nothing were missing; None where nothing is."""
    scored_high: float | None = None


@dataclass(frozen=True, slots=True)
class NoiseFloor(_Readable):
    """What changes when nothing changes but the seed."""

    seed_sd: float
    difference: float
    """Two equal recipes differ by less than this in 19 of 20 cases."""
    of: str
    """Whose seeds tell."""


@dataclass(frozen=True, slots=True)
class Population(_Readable):
    """What the numbers are about."""

    source: str | None
    """File or id of the tasks."""
    n_tasks: int | None
    n_clusters: int | None
    """None where every task stands for itself."""
    samples_per_task: float | None
    left_out: int = 0
    """Tasks that some arm has no score for."""


@dataclass(frozen=True, slots=True)
class Trend(_Readable):
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


@dataclass(frozen=True, slots=True)
class Sequential(_Readable):
    """How far an experiment went that was to end as soon as its claim is decided."""

    looks: list[int]
    """Seeds of each run at which the claim was planned to be judged."""
    look: int
    """Which of them was the last one, counted from 1."""
    seeds: int
    outcome: str
    """`decided`, `futile`, `seeds are missing`, `all seeds were needed`, or `broken off`."""
    error: float
    """At which this look was tested by itself."""
    arms: int
    arms_planned: int
    chance: float | None = None
    """Of being supported at the last look, as it looked then; None where that is not known."""


RULES = 6
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
    hypothesis: dict[str, Any] | None
    hypothesis_sha256: str | None
    registered: bool
    """Whether the claim is the one that the journal holds from before the first step."""
    metric: str | None
    """Full name of the reported metric."""
    mode: Literal["max", "min"] | None
    """Whether more or less of it is better."""
    selection: str | None
    """What chose among the runs."""
    report_sha256: str | None
    """Of the tasks that are reported."""
    baseline: str | None
    baseline_is: str | None
    """Why that is the baseline."""
    judged: str | None
    """The run whose difference decides about the claim."""
    best_arm: str | None
    best_score: float | None
    runs: list[RunSummary]
    comparisons: list[Comparison]
    n_compared: int
    noise_floor: NoiseFloor | None
    smallest_detectable: float | None
    """True effect that would have been seen in 80 % of repetitions."""
    looks: dict[str, int] | None
    """Scorings of the test set: `here`, and `before` in `experiments` earlier experiments."""
    not_scored: dict[str, str]
    threats: list[str]
    next: list[str]
    rule: str | None = None
    """What had to be seen, as it was fixed before the first step."""
    error_rate: float | None = None
    """How often luck alone would have been called supported, at most, where all runs are equally noisy."""
    attempt: int | None = None
    """Which attempt at the claim this is; None where nobody counts."""
    population: Population | None = None
    shared_seeds: bool = False
    """Whether all runs were trained with the same seeds."""
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
        """The conclusion that was written; raises KeyError or TypeError for anything else."""
        known: dict[str, Any] = {
            one.name: data[one.name] for one in fields(cls) if one.name in data or not _has_default(one)
        }
        known["runs"] = [RunSummary.from_dict(run) for run in known["runs"]]
        known["comparisons"] = [Comparison.from_dict(one) for one in known["comparisons"]]
        for name, form in _PARTS.items():
            if known.get(name) is not None:
                known[name] = form.from_dict(known[name])
        known["schema_version"] = int(data.get("schema_version", 1))
        return cls(**known)

    def comparison(self, run: str | None) -> Comparison | None:
        return next((one for one in self.comparisons if one.run == run), None)

    def run(self, name: str | None) -> RunSummary | None:
        return next((one for one in self.runs if one.name == name), None)


_PARTS: dict[str, type[_Readable]] = {
    "noise_floor": NoiseFloor,
    "population": Population,
    "trend": Trend,
    "sequential": Sequential,
}


def _has_default(one: Field[Any]) -> bool:
    """Whether an older conclusion may lack it."""
    return one.default is not MISSING or one.default_factory is not MISSING


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_round(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return value
