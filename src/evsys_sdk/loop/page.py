"""The page of a loop for the terminal and the dashboard: its state, rounds, approvals and deployments.

It is computed from the files on disk, so it is current also while the loop runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..dashboard.shapes.experiment import NewProjectRequest
from ..data.jsonl import read_json
from ..deploy.deployments import Deployments
from ..errors import EvsysError, WorkspaceError
from ..files import write_text
from ..history.campaigns.campaign import close_campaign, extend_campaign, load_campaign
from ..history.campaigns.progress import measure_progress
from ..paths import workspace_dir
from ..record.approvals import approval_folder, decide_approval
from ..record.jsonl_file import read_records
from ..record.layout import LOOPS
from ..record.project_files.journals import list_campaigns
from ..record.values import items, part, text
from .loop import SYSTEM, Loop
from .round import RoundState
from .system import SystemConfig

_STEPS = 100
"""Number of the latest steps on the page."""


def read_loops() -> list[dict[str, Any]]:
    """The pages of all loops of this project; an unreadable one has its problem."""
    pages: list[dict[str, Any]] = []
    for file in sorted((workspace_dir() / LOOPS).glob(f"*/{SYSTEM}")):
        try:
            system = SystemConfig.model_validate(read_json(file))
            pages.append(describe_loop(Loop(system)))
        except (EvsysError, ValueError) as error:
            pages.append(_empty(file.parent.name) | {"problem": str(error)})
    return pages


class ProjectLoops:
    """The loops and campaigns of this project, with the actions of the dashboard."""

    def loops(self) -> list[dict[str, Any]]:
        return read_loops()

    def campaigns(self) -> list[dict[str, Any]]:
        """The campaigns as in `evsys campaign show --json`; an unreadable one has its problem."""
        return [_describe_or_explain(name) for name in list_campaigns()]

    def carry_out(self, project_kind: str, name: str, request: NewProjectRequest) -> str:
        """Approve, reject, extend or stop; returns the outcome as text."""
        if request.kind == "extend":
            if project_kind != "campaign":
                raise WorkspaceError("a loop has no deadline. Only a campaign can be extended.")
            until = extend_campaign(name, request.hours, by=request.author, reason=request.reason)
            return f"it ends at {time.strftime('%Y-%m-%d %H:%M', time.localtime(until))}"
        if request.kind != "stop":
            yes, folder = request.kind == "approve", approval_folder(f"{project_kind}:{name}")
            assert folder is not None
            decide_approval(
                folder, approve=yes, subject=request.subject or None, reason=request.reason, author=request.author
            )
            return "approved" if yes else "rejected"
        reason = request.reason or "stopped on the dashboard"
        if project_kind == "campaign":
            return f"closed: {close_campaign(name, reason).closed}"
        folder = approval_folder(f"loop:{name}")
        assert folder is not None
        write_text(Loop(SystemConfig.model_validate(read_json(folder / SYSTEM))).stop_file, f"{reason}\n")
        return "it stops before its next step"


def act_on_request(name: str, request: Mapping[str, Any]) -> tuple[str, str]:
    """Carry out a dashboard's request to `campaign:NAME` or `loop:NAME`; returns its state and an answer."""
    kind, subject, reason, author = (str(request.get(key) or "") for key in ("kind", "subject", "reason", "author"))
    project_kind, _, name = name.partition(":")
    try:
        hours = float(subject) if kind == "extend" else 0.0
        action = NewProjectRequest.model_validate(
            {"kind": kind, "subject": subject, "reason": reason, "author": author, "hours": hours}
        )
        return "done", ProjectLoops().carry_out(project_kind, name, action)
    except (EvsysError, ValueError) as error:
        return "refused", str(error)


def describe_campaign(name: str) -> dict[str, Any]:
    """The JSON form of a campaign."""
    campaign = load_campaign(name)
    return {
        "name": name,
        "terms": asdict(campaign.terms),
        "deadline": campaign.deadline,
        **measure_progress(campaign).to_dict(),
        "candidates": [asdict(candidate) for candidate in campaign.candidates],
        "decisions": [decision.to_dict() for decision in campaign.decisions],
        "approvals": [approval.to_dict() for approval in campaign.approvals.values()],
    }


def _describe_or_explain(name: str) -> dict[str, Any]:
    try:
        return describe_campaign(name)
    except EvsysError as error:
        return {"name": name, "problem": str(error)}


def describe_loop(loop: Loop) -> dict[str, Any]:
    """The JSON form of a loop."""
    system, rounds = loop.system, loop.rounds()
    deployments = Deployments.read()
    live = deployments.live_under(system.deploy.name)
    steps = list(read_records(loop.journal))
    limits = {name: value for name, value in system.limits.model_dump().items() if value is not None}
    return _empty(system.name) | {
        "state": _state(loop, rounds, steps),
        "live": live.id if live else None,
        "stopped": loop.stop_file.exists(),
        "usd": sum(state.usd for state in rounds),
        "limits": limits,
        "rounds": [_describe_round(loop, state, steps) for state in rounds],
        "deployments": [
            {"id": entry.id, "time": entry.time, "live": live is not None and entry.id == live.id}
            for entry in deployments.all
            if entry.name == system.deploy.name
        ],
        "rollbacks": [
            {"replaced": entry.replaced, "instead": entry.deployment or None, "reason": entry.reason}
            for entry in deployments.rollbacks
            if entry.name == system.deploy.name
        ],
        "steps": [{"time": None, **step} for step in steps[-_STEPS:]],  # earlier versions recorded no time
    }


def _empty(name: str) -> dict[str, Any]:
    lists = {key: list[Any]() for key in ("rounds", "deployments", "rollbacks", "steps")}
    plain: dict[str, Any] = {"state": "", "live": None, "stopped": False, "usd": 0.0, "limits": {}, "problem": ""}
    return {"system": name, **plain, **lists}


def _state(loop: Loop, rounds: list[RoundState], steps: list[dict[str, Any]]) -> str:
    """What the loop waits for, or does next, as text."""
    if loop.stop_file.exists():
        return "stopped by its stop file"
    if (waiting := loop.waiting(rounds)) is not None:
        return f"round {waiting.number}: {waiting.stage} waits to be approved"
    open_round = next((state for state in rounds if state.stage != "settled"), None)
    if open_round is not None:
        return f"round {open_round.number}: {open_round.stage} is next"
    last = steps[-1] if steps else {}
    return f"{text(last.get('stage'))}: {text(last.get('text'))}" if last else "nothing was begun yet"


def _describe_round(loop: Loop, state: RoundState, steps: list[dict[str, Any]]) -> dict[str, Any]:
    round_steps = (step for step in steps if step.get("round") == state.number)
    decisions = [text(step.get("text")) for step in round_steps if step.get("stage") == "decide"]
    checks = [part(check) for check in items(state.decision.get("checks"))] if state.decision else []
    return {
        **state.to_dict(),
        "left_out": state.sealed.get("left_out") or {},
        "decision": next((decision for decision in decisions if decision.startswith("yes")), ""),
        "experiment_id": state.source.experiment if state.source else None,
        "verdict": text(state.decision.get("verdict")) if state.decision else None,
        "checks": [
            {"name": text(check.get("name")), "state": text(check.get("state")), "reason": text(check.get("reason"))}
            for check in checks
        ],
        "approvals": loop.approvals(state.number),
    }
