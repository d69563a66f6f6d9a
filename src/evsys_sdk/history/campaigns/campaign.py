"""A campaign: a question, a budget, stopping rules, and the experiments under it.

All state is stored as events in the journal of the campaign. Experiments belong to it by the tag `campaign:<name>`, so
history and context can filter by it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...config import ExperimentConfig
from ...errors import ConfigError, Problem, WorkspaceError, show, suggest
from ...record.approvals import Approval, read_approvals
from ...record.events import Event, Kind
from ...record.project_files.journals import (
    change_campaign,
    list_campaigns,
    read_campaign,
    verify_campaign,
)
from ...record.values import number

TAG = "campaign:"
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a campaign; fixed when it is opened."""

    question: str
    experiments: int | None = None
    tokens: int | None = None
    usd: float | None = None
    hours: float | None = None
    goal: float | None = None
    """Stop when a supported experiment reaches this score."""
    patience: int = 3
    """Stop after this many experiments in a row without a better score."""
    approve_tokens: int | None = None
    """Experiments that may take more tokens need human approval."""
    portfolio: str | None = None
    """YAML file of the families of strategies that `evsys campaign run` works through."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed experiment, with the holder of its lease."""

    number: int
    text: str
    by: str = ""
    taken_by: str = ""
    taken_until: float = 0.0

    def holder(self, now: float) -> str:
        """The holder of the lease; empty if the lease has expired."""
        return self.taken_by if now < self.taken_until else ""


@dataclass(frozen=True, slots=True)
class Admission:
    """An admitted experiment, with the most tokens and USD it may take."""

    attempt: int
    experiment: str
    plan: str
    tokens: float
    usd: float
    time: float


@dataclass(frozen=True)
class Campaign:
    """The state of a campaign, read from its journal."""

    name: str
    terms: Terms
    opened: float
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    approvals: dict[str, Approval] = field(default_factory=dict[str, Approval])
    """Hash of a plan -> its approval."""
    admissions: list[Admission] = field(default_factory=list[Admission])
    decisions: list[Event] = field(default_factory=list[Event])
    """The recorded decisions about its portfolio, each with its reason."""
    closed: str = ""
    """Reason for closing; empty while it is open."""
    closed_at: float = 0.0

    @property
    def tag(self) -> str:
        return f"{TAG}{self.name}"

    @property
    def deadline(self) -> float | None:
        """The time at which `evsys campaign run` ends it, or None."""
        starts = [event for event in self.decisions if event.text("action") == "start"]
        return number(starts[-1].get("deadline")) if starts else None


def open_campaign(name: str, terms: Terms) -> Campaign:
    """Open a campaign; its terms cannot be changed afterwards."""
    if not _NAME.fullmatch(name):
        proposal = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "better-answers"
        raise WorkspaceError(f"{show(name)} cannot name a campaign: use a-z, 0-9, '-' and '_'. Try '{proposal}'.")
    if not terms.question.strip():
        raise WorkspaceError("a campaign needs a question. State it with --question.")
    limits = (terms.experiments, terms.tokens, terms.usd, terms.hours)
    if not any(limit is not None for limit in limits):
        raise WorkspaceError("a campaign needs a limit. Set --experiments, --tokens, --usd or --hours.")
    with change_campaign(name) as (events, journal):
        if events:
            raise WorkspaceError(f"the campaign '{name}' exists already, and its terms stay. Choose another name.")
        fields = {key: getattr(terms, key) for key in Terms.__slots__}
        journal.append(Kind.CAMPAIGN_OPENED, **fields)
    return load_campaign(name)


def load_campaign(name: str) -> Campaign:
    """Load a campaign; raise if it does not exist or its journal was changed."""
    events = read_campaign(name) if _NAME.fullmatch(name) else []
    if not events or events[0].kind != Kind.CAMPAIGN_OPENED:
        names = list_campaigns()
        hint = suggest(name, names) or (f"There are: {', '.join(names)}." if names else "")
        raise WorkspaceError(f"there is no campaign {show(name)}. {hint or 'Begin one with: evsys campaign new'}")
    # Terms and admissions exist only in the journal, so a changed journal cannot be trusted.
    if problems := verify_campaign(name):
        raise WorkspaceError(f"the journal of the campaign '{name}' was changed: {problems[0]} Open another one.")
    return build_campaign(name, events)


def campaign_of(config: ExperimentConfig) -> str | None:
    """The name of the campaign in the tags of an experiment, or None."""
    names = [tag.removeprefix(TAG) for tag in config.metadata.tags if tag.startswith(TAG)]
    if len(names) > 1:
        message, hint = "an experiment belongs to one campaign", "Keep the tag of one."
        raise ConfigError(Problem(message, path="metadata.tags", value=names, hint=hint))
    return names[0] if names else None


def build_campaign(name: str, events: Sequence[Event]) -> Campaign:
    """Build a campaign from the events of its journal."""
    first = events[0]
    terms = Terms(**{key: first.get(key) for key in Terms.__slots__ if first.get(key) is not None})
    candidates: dict[int, Candidate] = {}
    admissions: list[Admission] = []
    closed, closed_at = "", 0.0
    for event in events[1:]:
        at = event.time or 0.0
        match event.kind:
            case Kind.CAMPAIGN_PROPOSED:
                count = len(candidates) + 1
                candidates[count] = Candidate(count, event.text("text"), event.text("by"))
            case Kind.CAMPAIGN_TAKEN:
                candidate = candidates[int(event.get("candidate"))]
                until = number(event.get("until")) or 0.0
                candidates[candidate.number] = replace(candidate, taken_by=event.text("by"), taken_until=until)
            case Kind.CAMPAIGN_ADMITTED:
                amounts = (number(event.get("tokens")) or 0.0, number(event.get("usd")) or 0.0)
                admission = Admission(
                    len(admissions) + 1, event.text("experiment"), event.text("plan"), *amounts, time=at
                )
                admissions.append(admission)
            case Kind.CAMPAIGN_CLOSED:
                closed, closed_at = event.text("reason") or "no reason was given", at
            case _:  # of a later version
                pass
    decisions = [event for event in events if event.kind == Kind.CAMPAIGN_DECIDED]
    approvals, opened = read_approvals(events), first.time or 0.0
    return Campaign(name, terms, opened, [*candidates.values()], approvals, admissions, decisions, closed, closed_at)


def propose(name: str, text: str, *, by: str = "") -> Candidate:
    """Add a candidate; return the existing one if the text is the same."""
    if not text.strip() or len(text) > _LONGEST:
        raise WorkspaceError(f"a candidate is a sentence of at most {_LONGEST} characters: what to try, and why.")
    # Here and below: raises if the campaign does not exist or was changed; its events are read again under the lock.
    load_campaign(name)
    with change_campaign(name) as (events, journal):
        campaign = _refuse_closed(build_campaign(name, events))
        # Agents that run in parallel may propose the same text.
        same = next((candidate for candidate in campaign.candidates if candidate.text == text), None)
        if same is not None:
            return same
        journal.append(Kind.CAMPAIGN_PROPOSED, text=text, by=by)
    return load_campaign(name).candidates[-1]


def take(name: str, candidate: int, *, by: str, minutes: float = 60.0) -> Candidate:
    """Lease a candidate, so that no other agent works on it; leasing it again extends the lease."""
    if not by.strip():
        raise WorkspaceError("a lease needs a holder. Name who works on it with --by.")
    load_campaign(name)
    with change_campaign(name) as (events, journal):
        campaign = _refuse_closed(build_campaign(name, events))
        candidates = {entry.number: entry for entry in campaign.candidates}
        if candidate not in candidates:
            numbers = ", ".join(map(str, candidates)) or "none yet; add one with: evsys campaign propose"
            raise WorkspaceError(f"the campaign '{name}' has no candidate {candidate}. It has: {numbers}.")
        now = time.time()
        holder = candidates[candidate].holder(now)
        if holder and holder != by:
            left = (candidates[candidate].taken_until - now) / 60
            raise WorkspaceError(
                f"candidate {candidate} is taken by {show(holder)} for another {left:.0f} minutes. Take another one."
            )
        journal.append(Kind.CAMPAIGN_TAKEN, candidate=candidate, by=by, until=now + 60 * minutes)
    return load_campaign(name).candidates[candidate - 1]


def extend_campaign(name: str, hours: float, *, by: str = "", reason: str = "") -> float:
    """Extend the deadline of a campaign with a portfolio; its driver uses it from the next step; return it."""
    load_campaign(name)
    with change_campaign(name) as (events, journal):
        decisions = _refuse_closed(build_campaign(name, events)).decisions
        starts = [event for event in decisions if event.text("action") == "start"]
        deadline = number(starts[-1].get("deadline")) if starts else None
        if deadline is None:
            raise WorkspaceError(f"the campaign '{name}' has no deadline to extend. `campaign run --until` sets one.")
        if hours <= 0:
            raise WorkspaceError(f"--hours {hours:g}: a deadline is extended by a positive number of hours.")
        budget = (number(starts[-1].get("budget")) or 0.0) + 3600 * hours
        unchanged = {"unit": starts[-1].text("unit"), "least": starts[-1].get("least"), "by": by}
        reason = reason or f"{hours:g} hours more"
        more = {"budget": budget, "deadline": deadline + 3600 * hours, "reason": reason, **unchanged}
        journal.append(Kind.CAMPAIGN_DECIDED, action="start", family="", amount=0.0, **more)
    return deadline + 3600 * hours


def close_campaign(name: str, reason: str) -> Campaign:
    """Close a campaign, so that no experiment starts under it any more."""
    load_campaign(name)
    with change_campaign(name) as (events, journal):
        _refuse_closed(build_campaign(name, events))
        journal.append(Kind.CAMPAIGN_CLOSED, reason=reason)
    return load_campaign(name)


def _refuse_closed(campaign: Campaign) -> Campaign:
    if campaign.closed:
        raise WorkspaceError(f"the campaign '{campaign.name}' is closed ({campaign.closed}). Open another one.")
    return campaign
