"""The claim of an experiment in a canonical form, and its hash.

The hash goes into the journal when the experiment starts, because a claim made after the scores are known proves
nothing. A conclusion about a claim with another hash is `invalid`.

    normalise_hypothesis(config.metadata)   {"claim": ..., "metric": ..., "direction": ..., ...}, or None
    hypothesis_sha256(config.metadata)      64 hex digits, or None
    find_claim(config.metadata)             the same as a `Claim`, with the threshold to exceed
    claim_problems(config)                  why the runs of the config could not answer the claim
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from ..config import ExperimentConfig, Metadata
from ..config.search import success_of
from ..errors import Problem
from ..redact import redact

_DEFAULTS: dict[str, Any] = {
    "baseline_repeats": None,
    "kind": "better",
    "level": None,
    "margin": None,
    "axis": None,
    "scale": "linear",
    "about": [],
}
"""Fields that are left out of the canonical form at these values, so that hashes of older claims stay valid."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and the conditions under which it is supported."""

    text: str
    metric: str | None = None
    direction: Literal["increase", "decrease"] = "increase"
    min_effect: float = 0.0
    baseline: str | None = None
    baseline_repeats: int | None = None
    kind: Literal["better", "at_least", "not_worse", "trend"] = "better"
    level: float | None = None
    margin: float | None = None
    axis: str | None = None
    scale: Literal["linear", "log"] = "linear"
    about: tuple[str, ...] = ()
    """Config keys that may differ between the compared runs, because the claim is about them."""

    @property
    def sign(self) -> int:
        return 1 if self.direction == "increase" else -1

    @property
    def threshold(self) -> float:
        """The difference that must be exceeded, in the direction of the claim."""
        return -self.margin if self.kind == "not_worse" and self.margin is not None else self.min_effect

    def rule(self, metric: str, *, validated: bool = False, error: float = 0.02, looks: Sequence[int] = ()) -> str:
        """The decision rule as a sentence, written into the record before the first step."""
        side = "above" if self.sign > 0 else "below"
        limit = f"{side} {self.sign * self.threshold:+g}" if self.threshold else f"{side} 0"
        condition = {
            "better": f"the interval of any run's difference to the baseline lies {limit}",
            "at_least": f"the interval of any run's score lies {side} {self.level}",
            "not_worse": f"the interval of any run's difference to the baseline lies {limit}",
            "trend": f"the interval of the change along {self.axis} lies {limit}",
        }[self.kind]
        joint = "" if self.kind == "trend" else "; the intervals hold for all compared runs together"
        if validated and self.kind != "trend":
            joint = "; only the run that validation selects is tested"
        rate = f"False positive rate: at most {100 * error:.2g} % (equally noisy runs)."
        if len(looks) > 1:
            when = ", ".join(map(str, looks[:-1])) + f" and {looks[-1]}"
            rate += f" Interim analyses after {when} seeds a run share it."
        return f"Supported if, on {metric}, {condition}{joint}. Each trained side needs three seeds. {rate}"

    def position(self, value: Any) -> float | None:
        """The position of a value on the axis's scale; None if it is no number on that scale."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        if self.scale == "log":
            return math.log(value) if value > 0 else None
        return float(value)


def normalise_hypothesis(metadata: Metadata) -> dict[str, Any] | None:
    """Claim, metric, direction, smallest effect, baseline and success metric; None without a hypothesis.

    A hypothesis that is a sentence claims that the success metric improves. A claim about a success metric with mode
    `min` claims a decrease, whatever its `direction` is.
    """
    hypothesis, success = metadata.hypothesis, success_of(metadata)
    if hypothesis is None:
        return None
    better = {"max": "increase", "min": "decrease"}[success.mode] if success else "increase"
    success_dict = None if success is None else {"name": success.name, "mode": success.mode}
    if isinstance(hypothesis, str):
        metric = success.name if success else None
        fields = {"claim": hypothesis, "metric": metric, "direction": better, "min_effect": 0.0, "baseline": None}
    else:
        metric = hypothesis.metric or (success.name if success else None)
        about_success = success is not None and metric == success.name
        direction = better if about_success and better == "decrease" else hypothesis.direction
        fields = {
            "claim": hypothesis.claim,
            "metric": metric,
            "direction": direction,
            "min_effect": float(hypothesis.min_effect),
            "baseline": hypothesis.baseline,
        }
        fields |= {key: value for key, default in _DEFAULTS.items() if (value := getattr(hypothesis, key)) != default}
    return fields | {"success_metric": success_dict}


def find_claim(metadata: Metadata) -> Claim | None:
    """The claim of an experiment; None without a hypothesis."""
    fields = normalise_hypothesis(metadata)
    if fields is None:
        return None
    return Claim(
        fields["claim"], **{key: value for key, value in fields.items() if key not in ("claim", "success_metric")}
    )


def claim_problems(config: ExperimentConfig) -> list[Problem]:
    """The reasons why the runs of a config cannot answer its claim."""
    claim = find_claim(config.metadata)
    if claim is None:
        return []
    if claim.baseline_repeats is not None and config.search is not None:
        hint = "Remove it, or the search."
        place = "metadata.hypothesis.baseline_repeats"
        return [Problem("a search chooses the number of seeds itself", place, claim.baseline_repeats, hint)]
    return [*_range_problems(config, claim), *_axis_problems(config, claim)]


MEANS = ("pass@1", "pass^1", "mean_reward", "pass_rate", "exact_match", "accuracy")
"""Metrics that are a mean over samples; with rewards of 0 and 1 they are the same number."""
_RATES = ("pass@", "pass^", "pass_rate", "exact_match", "accuracy")
"""Metrics that lie between 0 and 1."""


def is_rate(metric: str) -> bool:
    """Whether a metric lies between 0 and 1."""
    return metric.rpartition("/")[2].startswith(_RATES)


def _range_problems(config: ExperimentConfig, claim: Claim) -> list[Problem]:
    """Margins, effects and levels outside the range of a rate."""
    reported = [metric for entry in config.metadata.benchmark for metric in entry.metrics or ["pass@1"]]
    metrics = [claim.metric] if claim.metric is not None else reported
    if not metrics or not all(map(is_rate, metrics)):
        return []
    values = {"min_effect": claim.min_effect, "margin": claim.margin, "level": claim.level}
    wrong = {
        name: value
        for name, value in values.items()
        if value is not None and not 0 <= value < 1 and not (name == "level" and value == 1)
    }
    hint = f"{metrics[0]} lies between 0 and 1: name a value between, such as "
    return [
        Problem(
            f"{name} lies outside of the range of the metric",
            f"metadata.hypothesis.{name}",
            value,
            f"{hint}{value / 100 if 1 < value < 100 else 0.05:g}.",
        )
        for name, value in wrong.items()
    ]


def _axis_problems(config: ExperimentConfig, claim: Claim) -> list[Problem]:
    if claim.axis is None:
        return []
    place = "metadata.hypothesis.axis"
    values = [_value_at(run.model_dump(mode="json"), claim.axis) for run in config.all_runs()]
    numbers = {position for value in values if (position := claim.position(value)) is not None}
    if bad := [value for value in values if claim.position(value) is None]:
        what = "a positive number" if claim.scale == "log" else "a number"
        hint = "Name a dotted path that every run has such a value for, e.g. an axis of the matrix."
        return [Problem(f"a trend needs {what} in every run, and one run has {bad[0]!r}", place, claim.axis, hint)]
    if len(numbers) < 2:
        hint = "Give the runs at least two values, e.g. by an axis of the matrix."
        return [Problem(f"all runs have the same '{claim.axis}', so there is no trend", place, claim.axis, hint)]
    return []


def _value_at(run: Mapping[str, Any], path: str) -> Any:
    value: Any = run
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def hypothesis_sha256(metadata: Metadata) -> str | None:
    """Hash of the claim's canonical form; None without a hypothesis."""
    fields = normalise_hypothesis(metadata)
    if fields is None:
        return None
    # Redacted, because the conclusion is drawn from the record. Other JSON options would give another hash.
    text = json.dumps(redact(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()
