"""What lies behind an experiment: rollouts, spend, lineage, journal, comparisons, and the data it used."""

from __future__ import annotations

from typing import Any, Literal

from ...history.pairs import PairedDifference
from ...record.view.model import ArmView, RunView
from .experiment import ApiShape, Items, ShownExperiment


class ArmDetail(ApiShape):
    """One run with one seed, whole."""

    arm: ArmView
    config: dict[str, Any]
    """Of the run, as resolved."""
    checkpoints: list[dict[str, Any]]
    """`step`, `path` and `final` of each, oldest first; where known, also `name` and `metrics`."""
    datasets: list[dict[str, Any]]
    benchmarks: list[dict[str, Any]]
    examples: str
    """The first rows as the model saw them; lines that begin with + carry loss. Empty where none were kept."""
    story: str
    """What happened in it, Markdown; empty where no one wrote it down."""


class RolloutLine(ApiShape):
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


class Rollouts(ApiShape):
    """A page of rollouts, and what the list can be narrowed by."""

    items: list[RolloutLine]
    next: str | None
    total: int
    arms: list[str]
    sets: list[str]
    """`split/name` of every set that was attempted."""
    steps: list[int]
    rewards: list[int]
    """How many rollouts of the selection have a reward in each tenth of `reward_range`."""
    reward_range: list[float]


class RolloutDetail(ApiShape):
    """One rollout, whole."""

    rollout: RolloutLine
    messages: list[dict[str, Any]]
    """The conversation where it was recorded; else empty, and `text` is all there is."""
    text: str
    info: dict[str, Any]
    """What the verifier said."""
    expected: str
    """The answer that the task expects; empty where that is not known."""
    error: str
    raw: dict[str, Any]
    """As recorded."""
    previous: str | None
    following: str | None
    """Ids of the neighbours: the other samples of the same task."""


class SpendPart(ApiShape):
    """What one arm took."""

    name: str
    spend: dict[str, float]


class SpendBreakdown(ApiShape):
    """Where the money went."""

    total: dict[str, float]
    by_arm: list[SpendPart]
    times: list[float]
    usd: list[float]
    tokens: list[float]
    """Running totals at `times`."""


class Node(ApiShape):
    """Something that was used or made."""

    id: str
    kind: Literal["experiment", "dataset", "benchmark", "model", "checkpoint"]
    name: str
    detail: str
    """Hash, version, verdict: what tells it from others of its name."""


class Edge(ApiShape):
    """`source` was used for, or led to, `target`."""

    source: str
    target: str
    kind: str


class ExperimentLineage(ApiShape):
    """Where an experiment comes from and what came of it."""

    nodes: list[Node]
    edges: list[Edge]


class JournalLine(ApiShape):
    """One line of an experiment's journal."""

    id: str
    time: float | None
    kind: str
    data: dict[str, Any]


class Events(ApiShape):
    """A page of the journal, oldest first."""

    items: list[JournalLine]
    next: str | None


class JournalAnchor(ApiShape):
    """What a journal was at a moment, witnessed by the server."""

    experiment: str
    events: int
    """How many lines it had."""
    head: str
    """The hash of the last of them."""
    time: float


class ConfigDifference(ApiShape):
    """One config path in which runs differ, with the value of each."""

    path: str
    values: list[Any]


class ComparedRun(ApiShape):
    """One run of a comparison, and how it differs from the first."""

    experiment: ShownExperiment
    run: str
    score: RunView | None
    differences: list[PairedDifference]
    """By metric; none for the first run."""
    items: Items | None
    """The tasks of the metric that decides, where both runs were scored on the same set."""


class ComparedRuns(ApiShape):
    """Runs of any experiments; the first is what the others are compared with."""

    runs: list[ComparedRun]
    config: list[ConfigDifference]


class DataEntry(ApiShape):
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


class DataEntries(ApiShape):
    """Datasets or benchmarks, the newest version of each name first."""

    items: list[DataEntry]
    next: str | None


class DataRows(ApiShape):
    """Some rows of a dataset or a benchmark."""

    entry: DataEntry
    rows: list[dict[str, Any]]
    next: str | None
