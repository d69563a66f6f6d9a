"""The closed loops of a project: what each waits for, and what became of its rounds."""

from __future__ import annotations

from .experiment import Shape


class LoopCheck(Shape):
    """One condition of the gate, and whether it held."""

    name: str
    state: str
    reason: str


class LoopRound(Shape):
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
    """Steps that somebody let go on."""
    usd: float


class LoopDeployment(Shape):
    """Something that was shipped."""

    id: str
    time: float | None
    live: bool


class LoopRollback(Shape):
    """Something that was taken back."""

    replaced: str
    """What was live before ..."""
    instead: str | None
    """... and what is since."""
    reason: str


class LoopStep(Shape):
    """Something that the loop did, or waited for."""

    stage: str
    round: int
    text: str
    waits: bool
    time: float | None


class LoopPage(Shape):
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


class Loops(Shape):
    """All loops of a project."""

    items: list[LoopPage]
