"""The closed loops and the campaigns of a project: what each waits for, and what became of it."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from ...record.approvals import Approval
from .experiment import ApiShape


class LoopCheck(ApiShape):
    """One condition of the gate, and whether it held."""

    name: str
    state: str
    reason: str


class LoopRound(ApiShape):
    """One round of learning."""

    round: int
    stage: str
    """What is done next, or `settled`."""
    outcome: str | None
    """`shipped`, `rolled back`, `refused` or `failed`, once it is settled."""
    reason: str | None
    traces: int
    rows: int
    tasks: int
    left_out: dict[str, int]
    """Why traces are neither learned nor held out, and how many."""
    decision: str
    """Why it was begun."""
    experiment: str | None
    experiment_id: str | None
    verdict: str | None
    """Of the gate."""
    checks: list[LoopCheck]
    deployment: str | None
    approvals: list[str]
    """Steps that somebody let continue."""
    usd: float


class LoopDeployment(ApiShape):
    """Something that was shipped."""

    id: str
    time: float | None
    live: bool


class LoopRollback(ApiShape):
    """Something that was taken back."""

    replaced: str
    """What was live before ..."""
    instead: str | None
    """... and what is since."""
    reason: str


class LoopStep(ApiShape):
    """Something that the loop did, or waited for."""

    stage: str
    round: int
    text: str
    waits: bool
    time: float | None


class LoopPage(ApiShape):
    """One loop."""

    system: str
    state: str
    """What it waits for, or does next."""
    live: str | None
    stopped: bool
    usd: float
    limits: dict[str, float]
    rounds: list[LoopRound]
    deployments: list[LoopDeployment]
    rollbacks: list[LoopRollback]
    steps: list[LoopStep]
    """The latest, oldest first."""
    problem: str
    """Why it cannot be told; empty where it can."""


class Loops(ApiShape):
    """All loops of a project."""

    items: list[LoopPage]


class CampaignCandidate(ApiShape):
    """Something to try under a campaign, and who is at it."""

    model_config = ConfigDict(extra="ignore")

    number: int
    text: str
    by: str = ""
    taken_by: str = ""
    taken_until: float = 0.0


class CampaignDecided(ApiShape):
    """One step of a portfolio, with its reason."""

    model_config = ConfigDict(extra="ignore")

    time: float | None = None
    action: str
    """start, probe, train, confirm, or blocked where a family cannot continue."""
    family: str = ""
    reason: str = ""
    by: str = ""


class CampaignState(ApiShape):
    """One campaign, as `evsys campaign show --json` tells it; its experiments have the tag `campaign:NAME`."""

    model_config = ConfigDict(extra="ignore")

    name: str
    terms: dict[str, Any] = {}
    """`question`, the limits, `goal`, `patience`."""
    state: str = ""
    """open, met, spent, stalled or closed."""
    why: str = ""
    spent: dict[str, float] = {}
    left: dict[str, float] = {}
    """Of the limits that there are."""
    candidates: list[CampaignCandidate] = []
    suggestions: list[str] = []
    decisions: list[CampaignDecided] = []
    """Of its portfolio, oldest first."""
    deadline: float | None = None
    approvals: list[Approval] = []
    """Of plans that take more than the campaign allows by itself."""
    problem: str = ""
    """Why it cannot be told; empty where it can."""


class Campaigns(ApiShape):
    """All campaigns of a project."""

    items: list[CampaignState]


class ActionAnswer(ApiShape):
    """What came of a request to a loop or a campaign."""

    answer: str
