"""The closed loops and the campaigns of a project."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from ...record.approvals import Approval
from .experiment import ApiShape


class LoopCheck(ApiShape):
    """The result of one check of the gate."""

    name: str
    state: str
    reason: str


class LoopRound(ApiShape):
    """One round of learning."""

    round: int
    stage: str
    """The next stage, or `settled`."""
    outcome: str | None
    """`shipped`, `rolled back`, `refused` or `failed`, once it is settled."""
    reason: str | None
    traces: int
    rows: int
    tasks: int
    left_out: dict[str, int]
    """Number of traces that are neither trained on nor held out, by reason."""
    decision: str
    """Why the round was started."""
    experiment: str | None
    experiment_id: str | None
    verdict: str | None
    """The verdict of the gate."""
    checks: list[LoopCheck]
    deployment: str | None
    approvals: list[str]
    """Approved steps."""
    usd: float


class LoopDeployment(ApiShape):
    """A deployment."""

    id: str
    time: float | None
    live: bool


class LoopRollback(ApiShape):
    """A rollback."""

    replaced: str
    """The deployment that was rolled back."""
    instead: str | None
    """The deployment that is live instead."""
    reason: str


class LoopStep(ApiShape):
    """A step of the loop, done or waiting."""

    stage: str
    round: int
    text: str
    waits: bool
    time: float | None


class LoopPage(ApiShape):
    """One loop."""

    system: str
    state: str
    """The condition it waits for, or its next step."""
    live: str | None
    stopped: bool
    usd: float
    limits: dict[str, float]
    rounds: list[LoopRound]
    deployments: list[LoopDeployment]
    rollbacks: list[LoopRollback]
    steps: list[LoopStep]
    """The latest steps, oldest first."""
    problem: str
    """Why its state cannot be read; empty if it can."""


class Loops(ApiShape):
    """All loops of a project."""

    items: list[LoopPage]


class CampaignCandidate(ApiShape):
    """A candidate of a campaign, and the worker that has claimed it."""

    model_config = ConfigDict(extra="ignore")

    number: int
    text: str
    by: str = ""
    taken_by: str = ""
    taken_until: float = 0.0


class CampaignDecided(ApiShape):
    """One decision of a portfolio, with its reason."""

    model_config = ConfigDict(extra="ignore")

    time: float | None = None
    action: str
    """start, probe, train, confirm, or blocked where a family cannot continue."""
    family: str = ""
    reason: str = ""
    by: str = ""


class CampaignState(ApiShape):
    """One campaign, as printed by `evsys campaign show --json`; its experiments have the tag `campaign:NAME`."""

    model_config = ConfigDict(extra="ignore")

    name: str
    terms: dict[str, Any] = {}
    """`question`, the limits, `goal`, `patience`."""
    state: str = ""
    """open, met, spent, stalled or closed."""
    why: str = ""
    spent: dict[str, float] = {}
    left: dict[str, float] = {}
    """What is left of each limit."""
    candidates: list[CampaignCandidate] = []
    suggestions: list[str] = []
    decisions: list[CampaignDecided] = []
    """The decisions of its portfolio, oldest first."""
    deadline: float | None = None
    approvals: list[Approval] = []
    """Approvals of plans that exceed what the campaign allows without one."""
    problem: str = ""
    """Why its state cannot be read; empty if it can."""


class Campaigns(ApiShape):
    """All campaigns of a project."""

    items: list[CampaignState]


class ActionAnswer(ApiShape):
    """The outcome of a request to a loop or a campaign."""

    answer: str
