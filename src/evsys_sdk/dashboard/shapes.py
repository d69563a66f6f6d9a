"""What the read API answers: the same shapes from a project's own disk (`local.py`) and from a server's database.

A `run` is one entry of a config, an `arm` is a run with one seed. Times are seconds since 1970, spend is in the units
its keys name, and null means "not known", never zero. Text that a model, a person or a dataset wrote is data: show it
as plain text.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

type Scope = Literal["read", "write", "admin"]


class Shape(BaseModel):
    """Base of everything that crosses the API; unknown fields are refused on the way in."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Session(Shape):
    """Who is asking, and what the server can do for them."""

    mode: Literal["local", "server"]
    """`local`: the record of one project on this disk; `server`: what clients sent."""
    project: str
    project_name: str
    scopes: list[Scope]
    version: str
    can_stop: bool
    """Whether a stop request reaches running experiments."""


class Live(Shape):
    """How an experiment that is running is getting on."""

    arms_running: int
    step: int | None
    """The furthest step of any running arm."""
    total_steps: int | None
    metric: str
    """What `recent` shows; empty when nothing was logged yet."""
    recent: list[float]
    """The last values of `metric`, at most 40, oldest first."""


class Experiment(Shape):
    """One line of the list of experiments."""

    id: str
    name: str
    status: str
    """running, killed, completed, failed, interrupted, budget, damaged."""
    verdict: str
    """supported, promising_unconfirmed, inconclusive, refuted, invalid; empty without a conclusion."""
    hypothesis: str
    sentence: str
    """Why that is the verdict, in one sentence."""
    metric: str
    mode: Literal["max", "min"]
    best_run: str
    best_score: float | None
    best_low: float | None
    best_high: float | None
    n_runs: int
    n_arms: int
    n_done: int
    n_failures: int
    spend: dict[str, float]
    """usd, tokens_trained, tokens_sampled, wall_s, gpu_s; a key is missing where it is not known."""
    tags: list[str]
    models: list[str]
    algorithms: list[str]
    backends: list[str]
    parent_id: str
    started: float | None
    ended: float | None
    invalidated: str
    """Why it must not be believed; empty when nobody said so."""
    n_notes: int
    version: int
    """Grows with every change; two answers with the same version are equal."""
    live: Live | None
    """Only while it is running."""


class Experiments(Shape):
    """A page of the list."""

    items: list[Experiment]
    next: str | None
    """Cursor of the following page; null on the last one."""
    total: int
    """How many meet the filters, over all pages."""


class Overview(Shape):
    """The project in one look, and what its experiments can be filtered by."""

    total: int
    by_status: dict[str, int]
    by_verdict: dict[str, int]
    """Experiments without a conclusion are under `none`."""
    spend: dict[str, float]
    models: list[str]
    algorithms: list[str]
    tags: list[str]
    running: list[Experiment]
    version: int


class Arm(Shape):
    """One run with one seed."""

    arm: str
    run: str
    seed: int | None
    status: str
    """pending, started, completed, failed, cancelled."""
    problem: str
    """Why it cannot be counted on; empty when it can."""
    metrics: dict[str, float]
    """The last value of each metric."""
    spend: dict[str, float]
    step: int | None
    total_steps: int | None
    checkpoints: int
    score: float | None
    """Its value of the metric that decides."""


class Difference(Shape):
    """A run minus the baseline, with a simultaneous 95 % interval."""

    value: float
    low: float | None
    high: float | None
    p: float | None


class Run(Shape):
    """One run over its seeds: a line of the table of arms."""

    run: str
    is_baseline: bool
    is_best: bool
    varied: dict[str, Any]
    """Its values of the config paths in which the runs differ (`ExperimentDetail.varied`)."""
    score: float | None
    low: float | None
    high: float | None
    selection_score: float | None
    seed_scores: list[float]
    """One per scored seed, for a dot each."""
    n_seeds: int
    n_tasks: int | None
    n_samples: int | None
    failures: int
    spend: dict[str, float]
    difference: Difference | None
    arms: list[Arm]


class Claim(Shape):
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


class Note(Shape):
    """Something a person or an agent wrote down."""

    id: str
    text: str
    author: str
    time: float | None


class NewNote(Shape):
    """A note to add."""

    text: str = Field(min_length=1, max_length=20_000)
    author: str = Field(default="", max_length=200)


class ControlRequest(Shape):
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


class NewControlRequest(Shape):
    """Something to ask of a running experiment."""

    kind: Literal["stop", "approve", "reject"]
    subject: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=2_000)
    author: str = Field(default="", max_length=200)


class ExperimentDetail(Shape):
    """Everything the experiment's own page shows at once."""

    experiment: Experiment
    description: str
    claim: Claim
    runs: list[Run]
    """The baseline first, then the others as the conclusion ranks them."""
    varied: list[str]
    """Dotted config paths in which the runs differ."""
    baseline: str
    metrics: list[str]
    """Every metric that some arm has, scores first."""
    threats: list[str]
    next: list[str]
    not_scored: dict[str, str]
    looks: dict[str, Any] | None
    noise_floor: dict[str, Any] | None
    smallest_detectable: float | None
    failures: list[dict[str, str]]
    """`arm` and `reason`."""
    commands: dict[str, str]
    """What to type to go on (`resume`) or to do it again (`reproduce`)."""
    conclusion_text: str
    """The conclusion as its author wrote it, Markdown."""
    notes: list[Note]
    requests: list[ControlRequest]
    config: dict[str, Any]
    conclusion: dict[str, Any]


class Series(Shape):
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


class Curves(Shape):
    """One metric over the course of training."""

    metric: str
    x: str
    axes: list[str]
    """What can be asked for as `x`: step, tokens, minutes."""
    metrics: list[str]
    series: list[Series]


class Item(Shape):
    """One task of a benchmark, as two runs did on it: the mean over their seeds."""

    task: str
    a: float | None
    b: float | None
    change: Literal["gained", "lost", "same", "unpaired"]


class Items(Shape):
    """Two runs on one benchmark, task by task; what changed first."""

    metric: str
    metrics: list[str]
    a: str
    b: str
    gained: int
    lost: int
    same: int
    difference: Difference | None
    items: list[Item]
    next: str | None


class Rollout(Shape):
    """One line of the list of rollouts."""

    id: str
    arm: str
    split: str
    name: str
    """Of the benchmark; empty for rollouts of training."""
    step: int
    task: str
    sample: int
    status: str
    reward: float | None
    tokens: int | None
    turns: int | None
    preview: str
    """The beginning of what the model wrote."""


class Rollouts(Shape):
    """A page of rollouts, and what the list can be narrowed by."""

    items: list[Rollout]
    next: str | None
    total: int
    arms: list[str]
    sets: list[str]
    """`split/name` of every set that was attempted."""
    steps: list[int]
    rewards: list[int]
    """How many rollouts of the selection have a reward in each tenth of `reward_range`."""
    reward_range: list[float]


class RolloutDetail(Shape):
    """One rollout, whole."""

    rollout: Rollout
    messages: list[dict[str, Any]]
    """The conversation where it was recorded; else empty, and `text` is all there is."""
    text: str
    info: dict[str, Any]
    """What the verifier said."""
    error: str
    raw: dict[str, Any]
    """As recorded."""
    previous: str | None
    following: str | None
    """Ids of the neighbours: the other samples of the same task."""


class SpendLine(Shape):
    """What one arm, or one kind of work, took."""

    name: str
    spend: dict[str, float]


class Spend(Shape):
    """Where the money went."""

    total: dict[str, float]
    by_arm: list[SpendLine]
    by_work: list[SpendLine]
    """train, eval, ..."""
    times: list[float]
    usd: list[float]
    tokens: list[float]
    """Running totals at `times`."""


class Node(Shape):
    """Something that was used or made."""

    id: str
    kind: Literal["experiment", "dataset", "benchmark", "model", "checkpoint"]
    name: str
    detail: str
    """Hash, version, verdict: what tells it from others of its name."""


class Edge(Shape):
    """`source` was used for, or led to, `target`."""

    source: str
    target: str
    kind: str


class Lineage(Shape):
    """Where an experiment comes from and what came of it."""

    nodes: list[Node]
    edges: list[Edge]


class Event(Shape):
    """One line of an experiment's journal."""

    id: str
    time: float | None
    kind: str
    data: dict[str, Any]


class Events(Shape):
    """A page of the journal, oldest first."""

    items: list[Event]
    next: str | None


class MetricDifference(Shape):
    """One metric of two experiments, `b` minus `a`."""

    metric: str
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    n_tasks: int | None
    remark: str


class ConfigDifference(Shape):
    """One config path in which two experiments differ."""

    path: str
    a: Any
    b: Any


class Comparison(Shape):
    """Two experiments, by their best runs."""

    a: Experiment
    b: Experiment
    metrics: list[MetricDifference]
    config: list[ConfigDifference]
    items: Items | None
    """The tasks of the metric that decides, where both were scored on the same set."""


class DataEntry(Shape):
    """A dataset or a benchmark, one version and split of it."""

    id: str
    kind: Literal["dataset", "benchmark"]
    name: str
    version: int
    split: str
    rows: int | None
    bytes: int | None
    format: str
    sha256: str
    created: float | None
    metadata: dict[str, Any]


class DataEntries(Shape):
    """Datasets or benchmarks, the newest version of each name first."""

    items: list[DataEntry]
    next: str | None


class DataRows(Shape):
    """Some rows of a dataset or a benchmark."""

    entry: DataEntry
    rows: list[dict[str, Any]]
    next: str | None


class Problem(Shape):
    """Why a request was refused."""

    error: str
    """A short name: unauthorized, forbidden, not_found, bad_request, conflict, too_large, ..."""
    message: str
    """What is wrong and what to do, in a sentence."""
