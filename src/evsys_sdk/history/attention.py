"""The attention list: experiments, campaigns and loops that wait, failed, are near a limit, were refused or flagged.

The command line, the page and alerts show the same list.

    for item in read_attention():
        print(item.kind, item.experiment, item.what, item.command)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ..record.approvals import list_project_approvals
from ..record.events import Kind, read_events
from ..record.flat_config import shorten
from ..record.lock import lock_owner
from ..record.project_files.journals import campaign_dir, list_campaigns, read_campaign, read_promotions
from ..record.reader import ExperimentRecord
from ..record.values import items, number, part, text
from ..record.view.model import ExperimentView
from .campaigns.campaign import TAG, Campaign, build_campaign
from .campaigns.progress import OPEN, CampaignProgress, judge_progress

ATTENTION_DAYS = 7
"""Days for which an ended experiment stays on the list."""
_LONGEST = 160
_NEAR = 0.9
"""Share of a limit that counts as nearly reached."""
_ORDER = ("waiting", "damaged", "failed", "killed", "refused", "deadline", "nearly_spent", "flagged", "budget", "ended")
_ENDED_DAYS = 1
"""Days for which a closed campaign stays on the list."""
_WHAT = {
    "waiting": "waits for approval",
    "damaged": "its record cannot be read",
    "failed": "failed",
    "killed": "was killed",
    "budget": "stopped by its budget",
}
_COMMANDS = {"waiting": "evsys approve {path}", "flagged": "evsys audit {path}"}
_SPENT = {"tokens": ("tokens_trained", "tokens_sampled"), "usd": ("usd",), "wall_s": ("wall_s",), "gpu_s": ("gpu_s",)}


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """A reason for attention, and the command to start with."""

    id: str
    """Stable id of this state of this experiment, so that an alert is sent once."""
    kind: str
    experiment: str
    path: str
    what: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_attention(roots: Sequence[str | Path] = ()) -> list[AttentionItem]:
    """The attention list of a project: experiments, campaigns, loops and promotions."""
    from .history import History

    with History(roots) as history:
        views = list(history.select(since=time.time() - ATTENTION_DAYS * 86_400))
    return in_order([*find_attention(views), *find_project_attention(views)])


def find_project_attention(views: Iterable[ExperimentView]) -> list[AttentionItem]:
    """The items of this project's campaigns, loops and promotions."""
    views = list({view.id: view for view in views}.values())
    campaigns = (item for name in list_campaigns() for item in _check_campaign(name, views, time.time()))
    return [*_waiting_in_project(), *_refused_by_gate(), *campaigns]


def find_attention(views: Iterable[ExperimentView]) -> list[AttentionItem]:
    """The items of experiments, most urgent first; of several attempts, the latest counts."""
    latest: dict[str, ExperimentView] = {}
    for view in views:
        latest.setdefault(view.name or view.id, view)
    return in_order(_item(view, *kind) for view in latest.values() if not view.invalidated and (kind := _kind(view)))


def in_order(attention: Iterable[AttentionItem]) -> list[AttentionItem]:
    """The most urgent first."""
    return sorted(attention, key=lambda item: _ORDER.index(item.kind))


def _kind(view: ExperimentView) -> tuple[str, str] | None:
    """Kind and text of an experiment's item; None without one."""
    if view.status == "budget" and any(tag.startswith(TAG) for tag in view.tags):
        return None  # a slice of a campaign, which reports its own end
    if view.status in _WHAT:
        reason = f": {view.failures[0].arm}: {view.failures[0].reason}" if view.failures else ""
        return view.status, _WHAT[view.status] + (reason if view.status == "failed" else "")
    if view.is_live and (near := _nearest_limit(view)):
        return near
    return ("flagged", f"flagged: {view.flags[0]}") if view.flags else None


def _nearest_limit(view: ExperimentView) -> tuple[str, str] | None:
    budget = part(ExperimentRecord(view.folder).config or {}, "budget")
    for name, fields in _SPENT.items():
        limit, spent = number(budget.get(name)), sum(view.spend.get(field, 0.0) for field in fields)
        if limit and spent >= _NEAR * limit:
            amount = f"{spent:,.4g} of {limit:,.4g} {name}"
            is_time = name == "wall_s"
            return (
                ("deadline", f"deadline near: {amount}")
                if is_time
                else ("nearly_spent", f"budget nearly spent: {amount}")
            )
    return None


def _item(view: ExperimentView, kind: str, what: str) -> AttentionItem:
    command = _COMMANDS.get(kind, "evsys show {path}").format(path=quote(view.path))
    key = f"{view.id}/{kind}/{round(view.ended or view.started or 0)}"
    # An experiment that is resumed and killed again is a new item.
    if view.ended is None and view.folder.is_dir():
        key += f"/{sum(event.kind == Kind.RESUMED for event in read_events(view.folder))}"
    return AttentionItem(key, kind, view.id, view.path, shorten(what.splitlines()[0], _LONGEST), command)


def _waiting_in_project() -> Iterator[AttentionItem]:
    for target, approval in list_project_approvals():
        about = f"{approval.about} ({approval.subject})" if approval.about else approval.subject
        command = f"evsys approve {target} {quote(approval.subject)}"
        key = f"{target}/waiting/{approval.subject}/{round(approval.time)}"
        yield AttentionItem(key, "waiting", target, "", shorten(f"waits for approval: {about}", _LONGEST), command)


def _check_campaign(name: str, views: Sequence[ExperimentView], now: float) -> Iterator[AttentionItem]:
    """The items of a campaign: ended, stopped, failed families, a killed driver, or a limit that is near."""
    events = read_campaign(name)
    if not events or events[0].kind != Kind.CAMPAIGN_OPENED:
        return
    campaign = build_campaign(name, events)
    experiments = sorted((view for view in views if campaign.tag in view.tags), key=lambda view: view.started or 0.0)
    progress = judge_progress(campaign, experiments, now)

    def item(kind: str, key: object, what: str, command: str = f"evsys campaign show {name}") -> AttentionItem:
        first = shorten((what.splitlines() or [""])[0], _LONGEST)
        return AttentionItem(f"campaign:{name}/{kind}/{key}", kind, f"campaign:{name}", "", first, command)

    if campaign.closed:
        if campaign.closed_at > now - _ENDED_DAYS * 86_400:
            yield item("ended", "closed", f"ended: {campaign.closed}")
        return
    if progress.state != OPEN:
        close = f"evsys campaign close {name} --reason ..."
        yield item("ended", f"{progress.state}/{len(experiments)}", f"{progress.state}: {progress.why}", close)
    for event in campaign.decisions:
        if event.text("action") == "blocked":
            yield item("failed", event.id, f"failed: {event.text('family')}: {event.text('reason')}")
    for kind, limit, message in _near_limits(campaign, progress, now):
        yield item(kind, limit, message)
    last = campaign.decisions[-1] if campaign.decisions else None
    if last is not None and last.text("by") == "policy" and last.text("action") != "blocked":
        is_done = any((view.ended or 0.0) > (last.time or 0.0) for view in experiments)
        if not is_done and lock_owner(campaign_dir(name)) is None:
            message = f"was killed in the step '{last.text('action')} {last.text('family')}'"
            yield item("killed", last.id, message, f"evsys campaign run {name}")


def _near_limits(campaign: Campaign, progress: CampaignProgress, now: float) -> Iterator[tuple[str, str, str]]:
    """Kind, name and text of each limit that is nearly reached."""
    for limit, left in progress.left.items():
        spent = progress.spent[limit]
        if limit != "experiments" and left > 0 and spent >= _NEAR * (spent + left):
            message = f"budget nearly spent: {spent:,.4g} of {spent + left:,.4g} {limit}"
            yield "nearly_spent", f"{limit}/{spent + left:g}", message
    deadline = campaign.deadline
    if deadline is not None and now >= deadline - (1 - _NEAR) * (deadline - (campaign.decisions[0].time or 0.0)):
        end = time.strftime("%H:%M:%S", time.localtime(deadline))
        yield "deadline", f"{deadline:.0f}", f"deadline near: it ends at {end}"


def _refused_by_gate() -> Iterator[AttentionItem]:
    """The recent refusals among the latest gate decisions of each experiment."""
    gated = [event for event in read_promotions() if event.kind == Kind.GATED]
    latest = {text(event.part("candidate").get("experiment")): event for event in gated}
    for experiment, event in latest.items():
        if event.get("verdict") == "pass" or (event.time or 0.0) < time.time() - ATTENTION_DAYS * 86_400:
            continue
        checks = [part(check) for check in items(event.get("checks"))]
        reason = next((text(check.get("reason")) for check in checks if check.get("state") != "ok"), "")
        what = shorten(f"refused by the gate: {reason}", _LONGEST)
        yield AttentionItem(event.id, "refused", experiment, "", what, f"evsys show {quote(experiment)}")
