"""What needs a person: what waits, failed, was killed, is near or beyond a limit, was refused, or is flagged.

One list for the command line, the page and alerts.

    for one in read_attention():
        print(one.kind, one.experiment, one.what, one.command)
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
from .campaigns.campaign import TAG, Campaign, tell_campaign
from .campaigns.progress import OPEN, CampaignProgress, judge_progress

ATTENTION_DAYS = 7
"""How long an experiment that has ended stays on the list."""
_LONGEST = 160
_NEARLY = 0.9
"""Share of a limit from which on it is nearly reached."""
_ORDER = ("waiting", "damaged", "failed", "killed", "refused", "deadline", "nearly_spent", "flagged", "budget", "ended")
_ENDED_DAYS = 1
"""How long a campaign that was closed stays on the list."""
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
    """One reason to look at an experiment, and the command to start with."""

    id: str
    """The same for the same state of the same experiment: an alert about it is sent again under this id."""
    kind: str
    experiment: str
    path: str
    what: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_attention(roots: Sequence[str | Path] = ()) -> list[AttentionItem]:
    """What needs a person in a project at this moment: its experiments, campaigns, loops and promotions."""
    from .history import History

    with History(roots) as history:
        views = list(history.select(since=time.time() - ATTENTION_DAYS * 86_400))
    return in_order([*find_attention(views), *find_project_attention(views)])


def find_project_attention(views: Iterable[ExperimentView]) -> list[AttentionItem]:
    """What needs a person next to experiments: campaigns, loops and promotions of this project."""
    views = list({one.id: one for one in views}.values())
    campaigns = (one for name in list_campaigns() for one in _look_at_campaign(name, views, time.time()))
    return [*_waiting_in_project(), *_refused_by_gate(), *campaigns]


def find_attention(views: Iterable[ExperimentView]) -> list[AttentionItem]:
    """What needs a person among experiments, newest first; of several attempts at one, the latest counts."""
    latest: dict[str, ExperimentView] = {}
    for one in views:
        latest.setdefault(one.name or one.id, one)
    found = [_look_at(one, *kind) for one in latest.values() if not one.invalidated and (kind := _kind(one))]
    return in_order(found)


def in_order(found: Iterable[AttentionItem]) -> list[AttentionItem]:
    """The most urgent first."""
    return sorted(found, key=lambda item: _ORDER.index(item.kind))


def _kind(one: ExperimentView) -> tuple[str, str] | None:
    """The kind and the text."""
    if one.status == "budget" and any(tag.startswith(TAG) for tag in one.tags):
        return None  # a slice of a campaign, which reports its own end
    if one.status in _WHAT:
        reason = f": {one.failures[0].arm}: {one.failures[0].reason}" if one.failures else ""
        return one.status, _WHAT[one.status] + (reason if one.status == "failed" else "")
    if one.is_live and (near := _nearest_limit(one)):
        return near
    return ("flagged", f"flagged: {one.flags[0]}") if one.flags else None


def _nearest_limit(one: ExperimentView) -> tuple[str, str] | None:
    budget = part(ExperimentRecord(one.folder).config or {}, "budget")
    for name, fields in _SPENT.items():
        limit, spent = number(budget.get(name)), sum(one.spend.get(field, 0.0) for field in fields)
        if limit and spent >= _NEARLY * limit:
            stated = f"{spent:,.4g} of {limit:,.4g} {name}"
            is_time = name == "wall_s"
            return (
                ("deadline", f"deadline near: {stated}")
                if is_time
                else ("nearly_spent", f"budget nearly spent: {stated}")
            )
    return None


def _look_at(one: ExperimentView, kind: str, what: str) -> AttentionItem:
    command = _COMMANDS.get(kind, "evsys show {path}").format(path=quote(one.path))
    key = f"{one.id}/{kind}/{round(one.ended or one.started or 0)}"
    # One that is resumed and killed again is news, although it has the same start and no end.
    if one.ended is None and one.folder.is_dir():
        key += f"/{sum(event.kind == Kind.RESUMED for event in read_events(one.folder))}"
    return AttentionItem(key, kind, one.id, one.path, shorten(what.splitlines()[0], _LONGEST), command)


def _waiting_in_project() -> Iterator[AttentionItem]:
    for target, one in list_project_approvals():
        about = f"{one.about} ({one.subject})" if one.about else one.subject
        command = f"evsys approve {target} {quote(one.subject)}"
        key = f"{target}/waiting/{one.subject}/{round(one.time)}"
        yield AttentionItem(key, "waiting", target, "", shorten(f"waits for approval: {about}", _LONGEST), command)


def _look_at_campaign(name: str, views: Sequence[ExperimentView], now: float) -> Iterator[AttentionItem]:
    """A campaign that ended or stopped, whose families failed, whose driver was killed, or that is near a limit."""
    events = read_campaign(name)
    if not events or events[0].kind != Kind.CAMPAIGN_OPENED:
        return
    campaign = tell_campaign(name, events)
    mine = sorted((one for one in views if campaign.tag in one.tags), key=lambda one: one.started or 0.0)
    progress = judge_progress(campaign, mine, now)

    def item(kind: str, key: object, what: str, command: str = f"evsys campaign show {name}") -> AttentionItem:
        first = shorten((what.splitlines() or [""])[0], _LONGEST)
        return AttentionItem(f"campaign:{name}/{kind}/{key}", kind, f"campaign:{name}", "", first, command)

    if campaign.closed:
        if campaign.closed_at > now - _ENDED_DAYS * 86_400:
            yield item("ended", "closed", f"ended: {campaign.closed}")
        return
    if progress.state != OPEN:
        close = f"evsys campaign close {name} --reason ..."
        yield item("ended", f"{progress.state}/{len(mine)}", f"{progress.state}: {progress.why}", close)
    for event in campaign.decisions:
        if event.text("action") == "blocked":
            yield item("failed", event.id, f"failed: {event.text('family')}: {event.text('reason')}")
    for kind, limit, stated in _near_limits(campaign, progress, now):
        yield item(kind, limit, stated)
    last = campaign.decisions[-1] if campaign.decisions else None
    if last is not None and last.text("by") == "policy" and last.text("action") != "blocked":
        is_done = any((one.ended or 0.0) > (last.time or 0.0) for one in mine)
        if not is_done and lock_owner(campaign_dir(name)) is None:
            stated = f"was killed in the step '{last.text('action')} {last.text('family')}'"
            yield item("killed", last.id, stated, f"evsys campaign run {name}")


def _near_limits(campaign: Campaign, progress: CampaignProgress, now: float) -> Iterator[tuple[str, str, str]]:
    """Kind, name and text of each limit that is nearly reached; one that is reached has ended the campaign."""
    for limit, left in progress.left.items():
        spent = progress.spent[limit]
        if limit != "experiments" and left > 0 and spent >= _NEARLY * (spent + left):
            stated = f"budget nearly spent: {spent:,.4g} of {spent + left:,.4g} {limit}"
            yield "nearly_spent", f"{limit}/{spent + left:g}", stated
    deadline = campaign.deadline
    if deadline is not None and now >= deadline - (1 - _NEARLY) * (deadline - (campaign.decisions[0].time or 0.0)):
        stated = time.strftime("%H:%M:%S", time.localtime(deadline))
        yield "deadline", f"{deadline:.0f}", f"deadline near: it ends at {stated}"


def _refused_by_gate() -> Iterator[AttentionItem]:
    """The latest verdict about each experiment, where it is a refusal of the last days."""
    gated = [event for event in read_promotions() if event.kind == Kind.GATED]
    latest = {text(event.part("candidate").get("experiment")): event for event in gated}
    for experiment, event in latest.items():
        if event.get("verdict") == "pass" or (event.time or 0.0) < time.time() - ATTENTION_DAYS * 86_400:
            continue
        checks = [part({"one": one}, "one") for one in items(event.get("checks"))]
        reason = next((text(one.get("reason")) for one in checks if one.get("state") != "ok"), "")
        what = shorten(f"refused by the gate: {reason}", _LONGEST)
        yield AttentionItem(event.id, "refused", experiment, "", what, f"evsys show {quote(experiment)}")
