"""Experiments: lists of them, and the data of their page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...history.attention import AttentionItem
from ...history.pairs import ComparedTask, PairedDifference
from ...record.view.model import ExperimentView

type Scope = Literal["read", "write", "admin"]


class ApiShape(BaseModel):
    """Base of all requests and responses; unknown fields of requests are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiProblem(ApiShape):
    """The reason that a request was refused."""

    error: str
    """A short name: unauthorized, forbidden, not_found, bad_request, conflict, too_large, ..."""
    message: str
    """What is wrong and what to do, in a sentence."""


class PageSession(ApiShape):
    """The caller of a request and the mode of the server."""

    mode: Literal["local", "server"]
    """`local`: the record of one project on this disk; `server`: what clients sent."""
    project: str
    project_name: str
    scopes: list[Scope]
    version: str
    can_stop: bool
    """Whether a stop request reaches running experiments."""


class Live(ApiShape):
    """The progress of a running experiment."""

    arms_running: int
    step: int | None
    """The furthest step of any running arm."""
    total_steps: int | None
    metric: str
    """The metric of `recent`; empty if nothing was logged yet."""
    recent: list[float]
    """The last values of `metric`, at most 40, oldest first."""


@dataclass(frozen=TYPE_CHECKING, slots=True)  # see `ExperimentView`
class ShownExperiment(ExperimentView):
    """The view of an experiment; in lists without runs, arms, failures and notes."""

    n_notes: int = 0
    version: int = 0
    """Increases with every change; two responses with the same version are equal."""
    live: Live | None = None
    """Set while a process runs it."""


class Experiments(ApiShape):
    """A page of the list."""

    items: list[ShownExperiment]
    next: str | None
    """Cursor of the following page; null on the last one."""
    total: int
    """Number of matches on all pages."""


class Progress(ApiShape):
    """The progress of a task."""

    done: int
    of: int


class Overview(ApiShape):
    """The overview of a project, with the values that its experiments can be filtered by."""

    total: int
    by_status: dict[str, int]
    by_verdict: dict[str, int]
    """Experiments without a conclusion are under `none`."""
    spend: dict[str, float]
    trials: dict[str, float]
    """Number of claims `tested`, `supported` and at most `expected_false`; empty if none was tested."""
    models: list[str]
    algorithms: list[str]
    tags: list[str]
    running: list[ShownExperiment]
    attention: list[AttentionItem]
    """Items that need human attention, most urgent first."""
    version: int
    reading: Progress | None = None
    """The progress of reading a large project for the first time."""


class RegisteredClaim(ApiShape):
    """The hypothesis of an experiment."""

    text: str
    metric: str
    direction: str
    min_effect: float | None
    baseline: str
    registered: bool
    """Whether it was registered before the first step."""
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
    """A request to a running experiment."""

    id: str
    kind: Literal["stop", "approve", "reject"]
    subject: str
    """What is approved or rejected; empty for a stop."""
    reason: str
    author: str
    time: float
    state: Literal["open", "taken", "done", "refused"]
    answer: str
    """The outcome, once the request is taken."""


class NewControlRequest(ApiShape):
    """A new request to a running experiment."""

    kind: Literal["stop", "approve", "reject"]
    subject: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=2_000)
    author: str = Field(default="", max_length=200)


class NewProjectRequest(NewControlRequest):
    """A new request to a campaign or a loop."""

    kind: Literal["stop", "approve", "reject", "extend"]  # pyright: ignore[reportIncompatibleVariableOverride]
    hours: float = Field(default=0.0, ge=0, le=1000)
    """Hours by which a campaign is extended."""


class InterimLook(ApiShape):
    """One interim analysis of a claim, before all seeds are trained."""

    look: int
    of: int
    """Number of planned analyses."""
    seeds: int
    """Seeds of each run so far."""
    verdict: str
    error: float | None
    """The significance level of this analysis."""
    chance: float | None
    """The probability that the last analysis supports the claim; None if unknown."""
    ends: bool
    """Whether training stops here."""
    why: str


class ExperimentDetail(ApiShape):
    """The data of the page of an experiment."""

    experiment: ShownExperiment
    claim: RegisteredClaim
    metrics: list[str]
    """The metrics of all arms, scores first."""
    threats: list[str]
    next: list[str]
    not_scored: dict[str, str]
    looks: dict[str, Any] | None
    """The evaluations on the test set, in this experiment and earlier ones."""
    interim: list[InterimLook]
    """The interim analyses, if the experiment stops as soon as the claim is decided."""
    noise_floor: dict[str, Any] | None
    smallest_detectable: float | None
    commands: dict[str, str]
    """The commands to continue (`resume`) or repeat (`reproduce`) the experiment."""
    conclusion_text: str
    """The conclusion as its author wrote it, in Markdown."""
    requests: list[ControlRequest]
    log: str
    """The last lines of its output; empty if the output was not stored."""
    config: dict[str, Any]
    conclusion: dict[str, Any]


class Series(ApiShape):
    """One metric of one arm; with more points than requested, each entry is a bucket of points."""

    arm: str
    run: str
    seed: int | None
    n: int
    """Number of points in the range."""
    x: list[float]
    y: list[float | None]
    """Mean of the finite values; null if none is finite."""
    low: list[float | None]
    high: list[float | None]


class Curves(ApiShape):
    """The training curves of one metric."""

    metric: str
    x: str
    axes: list[str]
    """The available values of `x`: step, tokens, minutes, usd."""
    metrics: list[str]
    series: list[Series]


class Items(ApiShape):
    """Two runs compared by task, changed tasks first."""

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
