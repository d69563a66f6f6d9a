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

from pydantic import Field, field_validator

from ..config.base import Strict
from ..config.load import load_settings
from ..config.specs import VerifierSpec

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


class Shadow(Strict):
    """How the answers of a shadow are compared with those that users got."""

    verifier: VerifierSpec = VerifierSpec(kind="exact_match")
    """What scores an answer of either: any verifier, `llm_judge` among them."""
    expects: Literal["feedback", "nothing"] = "feedback"
    """`feedback`: what a user corrected the answer to, or the live answer where it was found good, is what is expected,
    and requests without either have no score. `nothing`: all have one, by a verifier that needs no expected answer."""


class RolloutPolicy(Strict):
    """How what passed the gate comes to answer all requests: a share of them first, then more, by live scores."""

    shadow: Shadow = Shadow()
    """What happens before that, where it was shipped with `--shadow`."""

    stages: list[float] = Field(default=[0.05, 0.25], min_length=1)
    """Shares of the requests, growing, each above 0 and below 1; behind the last it answers all of them."""
    min_scores: int = Field(default=30, ge=5)
    """Live scores of a stage, or scored pairs of a shadow, that are waited for; where they do not decide, twice as many
    are, and so on."""
    margin: float = Field(default=0.05, gt=0)
    """Live scores may be lower than those of what is live by less than this."""

    @field_validator("stages")
    @classmethod
    def _grow(cls, stages: list[float]) -> list[float]:
        if any(not 0 < share < 1 for share in stages) or sorted(set(stages)) != stages:
            raise ValueError("stages must grow, each above 0 and below 1, e.g. [0.05, 0.25]")
        return stages


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
    """How often luck alone may let weights pass that are no better, over all candidates judged on one set of tasks."""
    rollout: RolloutPolicy = RolloutPolicy()
    """How requests move over to it, in `evsys deployments step`."""
    watch: Watch = Watch()
    """What happens after it went live, in `evsys loop`."""


def load_policy(path: str | Path) -> GatePolicy:
    """The policy in a file."""
    return load_settings(path, GatePolicy)
