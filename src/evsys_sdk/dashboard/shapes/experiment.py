"""Experiments: lists of them, and everything their own page shows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...history.attention import AttentionItem
from ...history.pairs import ComparedTask, PairedDifference
from ...record.view.model import ExperimentView

type Scope = Literal["read", "write", "admin"]


class ApiShape(BaseModel):
    """Base of everything that crosses the API; unknown fields are refused on the way in."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiProblem(ApiShape):
    """Why a request was refused."""

    error: str
    """A short name: unauthorized, forbidden, not_found, bad_request, conflict, too_large, ..."""
    message: str
    """What is wrong and what to do, in a sentence."""


class PageSession(ApiShape):
    """Who is asking, and what the server can do for them."""

    mode: Literal["local", "server"]
    """`local`: the record of one project on this disk; `server`: what clients sent."""
    project: str
    project_name: str
    scopes: list[Scope]
    version: str
    can_stop: bool
    """Whether a stop request reaches running experiments."""


class Live(ApiShape):
    """How an experiment that is running is getting on."""

    arms_running: int
    step: int | None
    """The furthest step of any running arm."""
    total_steps: int | None
    metric: str
    """What `recent` shows; empty when nothing was logged yet."""
    recent: list[float]
    """The last values of `metric`, at most 40, oldest first."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `ExperimentView`
class ShownExperiment(ExperimentView):
    """The view of an experiment; in lists without runs, arms, failures and notes."""

    n_notes: int = 0
    version: int = 0
    """Grows with every change; two answers with the same version are equal."""
    live: Live | None = None
    """Only while a process works on it."""


class Experiments(ApiShape):
    """A page of the list."""

    items: list[ShownExperiment]
    next: str | None
    """Cursor of the following page; null on the last one."""
    total: int
    """How many meet the filters, over all pages."""


class Progress(ApiShape):
    """How far something has come."""

    done: int
    of: int


class Overview(ApiShape):
    """The project in one look, and what its experiments can be filtered by."""

    total: int
    by_status: dict[str, int]
    by_verdict: dict[str, int]
    """Experiments without a conclusion are under `none`."""
    spend: dict[str, float]
    trials: dict[str, float]
    """Claims `tested` and `supported`, and how many supported ones are `expected_false` at most; empty: none tested."""
    models: list[str]
    algorithms: list[str]
    tags: list[str]
    running: list[ShownExperiment]
    attention: list[AttentionItem]
    """What needs a person, the most urgent first."""
    version: int
    reading: Progress | None = None
    """How many experiments of a large project were read, while it is read for the first time."""


class RegisteredClaim(ApiShape):
    """What the experiment was meant to show."""

    text: str
    metric: str
    direction: str
    min_effect: float | None
    baseline: str
    registered: bool
    """Whether it was fixed before the first step."""
    registered_at: float | None
    sha256: str


class SavedNote(ApiShape):
    """A note with the id of its event in the journal."""

    id: str
    text: str
    author: str
    time: float | None


class NewNote(ApiShape):
    """A note to add."""

    text: str = Field(min_length=1, max_length=20_000)
    author: str = Field(default="", max_length=200)


class Tags(ApiShape):
    """All tags of an experiment."""

    tags: list[Annotated[str, Field(max_length=80)]] = Field(max_length=50)


class ControlRequest(ApiShape):
    """Something asked of a running experiment."""

    id: str
    kind: Literal["stop", "approve", "reject"]
    subject: str
    """What is approved or rejected; empty for a stop."""
    reason: str
    author: str
    time: float
    state: Literal["open", "taken", "done", "refused"]
    answer: str
    """What came of it, once it is taken."""


class NewControlRequest(ApiShape):
    """Something to ask of a running experiment."""

    kind: Literal["stop", "approve", "reject"]
    subject: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=2_000)
    author: str = Field(default="", max_length=200)


class NewProjectRequest(NewControlRequest):
    """Something to ask of a campaign or a loop."""

    kind: Literal["stop", "approve", "reject", "extend"]  # pyright: ignore[reportIncompatibleVariableOverride]
    hours: float = Field(default=0.0, ge=0, le=1000)
    """How much later a campaign ends."""


class InterimLook(ApiShape):
    """One look at a claim that is judged before all seeds are trained."""

    look: int
    of: int
    """How many were planned."""
    seeds: int
    """Of each run, so far."""
    verdict: str
    error: float | None
    """False positive rate of this interim analysis: what the claim is tested at."""
    chance: float | None
    """Of being supported at the last look; None where that is not known."""
    ends: bool
    """Whether no more seeds are trained."""
    why: str


class ExperimentDetail(ApiShape):
    """Everything the experiment's own page shows at once."""

    experiment: ShownExperiment
    claim: RegisteredClaim
    metrics: list[str]
    """Every metric that some arm has, scores first."""
    threats: list[str]
    next: list[str]
    not_scored: dict[str, str]
    looks: dict[str, Any] | None
    """At the test set, here and before."""
    interim: list[InterimLook]
    """What was found before the last seed, where the experiment ends as soon as it is decided."""
    noise_floor: dict[str, Any] | None
    smallest_detectable: float | None
    commands: dict[str, str]
    """What to type to continue (`resume`) or to do it again (`reproduce`)."""
    conclusion_text: str
    """The conclusion as its author wrote it, Markdown."""
    requests: list[ControlRequest]
    log: str
    """The last lines that it printed; empty where its output was not kept."""
    config: dict[str, Any]
    conclusion: dict[str, Any]


class Series(ApiShape):
    """One metric of one arm. Where there were more points than asked for, each entry stands for a bucket of them."""

    arm: str
    run: str
    seed: int | None
    n: int
    """How many points were recorded in the range."""
    x: list[float]
    y: list[float | None]
    """Mean of the finite values; null for a NaN or an infinity."""
    low: list[float | None]
    high: list[float | None]


class Curves(ApiShape):
    """One metric over the course of training."""

    metric: str
    x: str
    axes: list[str]
    """What can be asked for as `x`: step, tokens, minutes."""
    metrics: list[str]
    series: list[Series]


class Items(ApiShape):
    """Two runs on one benchmark, task by task; what changed first."""

    metric: str
    metrics: list[str]
    a: str
    b: str
    gained: int
    lost: int
    same: int
    difference: PairedDifference | None
    items: list[ComparedTask]
    next: str | None
