"""`gate.yaml`: the conditions under which weights may replace the live weights.

target: { metric: test/routing/pass@1, min_gain: 0.0 }
canaries:
  - { metric: test/safety/pass@1, margin: 0.02 }
limits:
  tokens_per_task: { times_current: 1.5 }
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from ..config.base import Strict
from ..config.load import load_settings

type Direction = Literal["increase", "decrease"]


class Target(Strict):
    """The metric that must improve."""

    metric: str = Field(min_length=1)
    """Full name, as in `evsys show`: `test/routing/pass@1`."""
    min_gain: float = Field(default=0.0, ge=0)
    """The whole interval of the difference must lie above this."""
    direction: Direction = "increase"
    """Direction of improvement."""


class Canary(Strict):
    """A metric that must not get worse."""

    metric: str = Field(min_length=1)
    """Full name, as in `evsys show`."""
    margin: float = Field(gt=0)
    """Largest tolerated loss: the whole interval of the difference must lie above `-margin`."""
    direction: Direction = "increase"
    """Direction of improvement."""


class Limit(Strict):
    """An upper bound on a cost per task."""

    most: float | None = Field(default=None, ge=0)
    """Absolute bound."""
    times_current: float | None = Field(default=None, gt=0)
    """Bound as a multiple of the cost of the live weights."""


class RolloutLimits(Strict):
    """Limits on the mean cost per task of the target."""

    tokens_per_task: Limit = Limit()
    """Input and output tokens."""
    seconds_per_task: Limit = Limit()
    """Seconds; depends on the machine that scored."""
    usd_per_task: Limit = Limit()
    """Price in USD; the limit fails if the price is unknown."""


class Integrity(Strict):
    """Conditions on the record of the experiment."""

    audit: Literal["clean", "valid", "ignore"] = "valid"
    """`clean`: the audit flags nothing. `valid`: the audit does not invalidate the record. `ignore`: no audit check."""
    contamination: bool = True
    """Refuse a candidate whose training rows contain tasks of its benchmarks."""


class Watch(Strict):
    """When a deployment is rolled back because of its live scores."""

    drop: float = Field(default=0.05, gt=0)
    """Roll back when live scores are significantly more than this below the score at shipping."""
    min_scores: int = Field(default=30, ge=2)
    """Minimum number of live scores for a decision."""


class GatePolicy(Strict):
    """The conditions under which weights may replace the live weights."""

    target: Target
    """Metric that must improve."""
    canaries: list[Canary] = []
    """Metrics that must not get worse."""
    limits: RolloutLimits = RolloutLimits()
    """Limits on the cost per task."""
    integrity: Integrity = Integrity()
    """Conditions on the record."""
    error: float = Field(default=0.025, gt=0, lt=0.5)
    """False positive rate over all candidates that are judged on the same tasks."""
    watch: Watch = Watch()
    """Rollback rule for live deployments, used by `evsys loop`."""


def load_policy(path: str | Path) -> GatePolicy:
    """Load a policy from a file."""
    return load_settings(path, GatePolicy)
