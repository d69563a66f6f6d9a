"""The details of an experiment: rollouts, spend, lineage, journal, comparisons, and its data."""

from __future__ import annotations

from typing import Any, Literal

from ...history.pairs import PairedDifference
from ...record.view.model import ArmView, RunView
from .experiment import ApiShape, Items, ShownExperiment


class ArmDetail(ApiShape):
    """The details of an arm: one run with one seed."""

    arm: ArmView
    config: dict[str, Any]
    """The resolved config of the run."""
    checkpoints: list[dict[str, Any]]
    """`step`, `path` and `final` of each, oldest first; where known, also `name` and `metrics`."""
    datasets: list[dict[str, Any]]
    benchmarks: list[dict[str, Any]]
    examples: str
    """The first rows as the model saw them, empty if not stored; lines that begin with + carry loss."""
    story: str
    """The summary of the run in Markdown; empty if there is none."""


class RolloutLine(ApiShape):
    """One line of the list of rollouts."""

    id: str
    arm: str
    split: str
    name: str
    """The benchmark; empty for rollouts of training."""
    step: int
    task: str
    sample: int
    status: str
    reward: float | None
    tokens: int | None
    turns: int | None
    preview: str
    """The beginning of the model's output."""


class Rollouts(ApiShape):
    """A page of rollouts, with the values that the list can be filtered by."""

    items: list[RolloutLine]
    next: str | None
    total: int
    arms: list[str]
    sets: list[str]
    """`split/name` of every evaluation set."""
    steps: list[int]
    rewards: list[int]
    """Number of matching rollouts with a reward in each tenth of `reward_range`."""
    reward_range: list[float]


class RolloutDetail(ApiShape):
    """One complete rollout."""

    rollout: RolloutLine
    messages: list[dict[str, Any]]
    """The conversation; empty if only `text` was recorded."""
    text: str
    info: dict[str, Any]
    """The details of the verifier."""
    expected: str
    """The expected answer; empty if unknown."""
    error: str
    raw: dict[str, Any]
    """As recorded."""
    previous: str | None
    following: str | None
    """Ids of the neighbours: the other samples of the same task."""


class SpendPart(ApiShape):
    """The spend of one arm."""

    name: str
    spend: dict[str, float]


class SpendBreakdown(ApiShape):
    """The spend in total, by arm and over time."""

    total: dict[str, float]
    by_arm: list[SpendPart]
    times: list[float]
    usd: list[float]
    tokens: list[float]
    """Running totals at `times`."""


class Node(ApiShape):
    """An input or output of an experiment."""

    id: str
    kind: Literal["experiment", "dataset", "benchmark", "model", "checkpoint"]
    name: str
    detail: str
    """Hash, version or verdict, which distinguishes it from others with its name."""


class Edge(ApiShape):
    """`source` was used for, or led to, `target`."""

    source: str
    target: str
    kind: str


class ExperimentLineage(ApiShape):
    """The lineage graph of an experiment."""

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
    """The state of a journal at one time, as recorded by the server."""

    experiment: str
    events: int
    """Number of events."""
    head: str
    """The hash of the last event."""
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
    """The tasks of the deciding metric, if both runs were scored on the same set."""


class ComparedRuns(ApiShape):
    """Runs of any experiments, compared with the first one."""

    runs: list[ComparedRun]
    config: list[ConfigDifference]


class DataEntry(ApiShape):
    """One version and split of a dataset or a benchmark."""

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
