"""`gate.yaml`: what weights must show before they replace others.

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
    """The metric that must get better."""

    metric: str = Field(min_length=1)
    """Full name, as `evsys show` has it: `test/routing/pass@1`."""
    min_gain: float = Field(default=0.0, ge=0)
    """The whole interval of the difference must lie above this."""
    direction: Direction = "increase"
    """Whether more or less of it is better."""


class Canary(Strict):
    """A metric that must not get worse."""

    metric: str = Field(min_length=1)
    """Full name, as `evsys show` has it."""
    margin: float = Field(gt=0)
    """The whole interval of the difference must lie above minus this: it may get worse by less."""
    direction: Direction = "increase"
    """Whether more or less of it is better."""


class Limit(Strict):
    """The most that answering may take."""

    most: float | None = Field(default=None, ge=0)
    """In itself."""
    times_current: float | None = Field(default=None, gt=0)
    """Compared with what is live."""


class RolloutLimits(Strict):
    """What answering the tasks of the target may take, on average."""

    tokens_per_task: Limit = Limit()
    """Tokens read and written."""
    seconds_per_task: Limit = Limit()
    """Seconds; they depend on the machine that scored."""
    usd_per_task: Limit = Limit()
    """Price, where the model has one."""


class Integrity(Strict):
    """What must hold of the record behind the scores."""

    audit: Literal["clean", "valid", "ignore"] = "valid"
    """`clean`: the audit flags nothing. `valid`: nothing that forbids conclusions."""
    contamination: bool = True
    """Refuse a candidate whose training rows hold tasks of its benchmarks."""


class Watch(Strict):
    """When live scores take a deployment back."""

    drop: float = Field(default=0.05, gt=0)
    """Rolled back once live scores are below those it was shipped with by more than this, with confidence."""
    min_scores: int = Field(default=30, ge=2)
    """Live scores that are waited for before anything is decided."""


class GatePolicy(Strict):
    """What weights must show before they replace others."""

    target: Target
    """What must get better."""
    canaries: list[Canary] = []
    """What must not get worse."""
    limits: RolloutLimits = RolloutLimits()
    """What answering may take."""
    integrity: Integrity = Integrity()
    """What must hold of the record."""
    error: float = Field(default=0.025, gt=0, lt=0.5)
    """False positive rate over all candidates that are judged on one set of tasks."""
    watch: Watch = Watch()
    """What happens after it went live, in `evsys loop`."""


def load_policy(path: str | Path) -> GatePolicy:
    """The policy in a file."""
    return load_settings(path, GatePolicy)
