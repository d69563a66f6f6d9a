"""The record of an experiment as plain values: every arm with its result, its scores by task and its cost.

Nothing is judged here, and nothing is left out: an arm that never started is an arm without a result. `reading.py`
fills these from the folder of an experiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...config import Metadata

BASELINE = "baseline"
"""The split under which models other than the trained one are scored."""

type SetKey = tuple[str, str]
"""Split and label of a benchmark."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one scoring."""

    value: float
    per_task: Mapping[str, float] | None = None
    n_samples: int = 0


@dataclass(frozen=True, slots=True)
class ScoredSet:
    """One model on one benchmark."""

    key: SetKey
    step: int
    sha256: str
    scores: Mapping[str, Score]
    failed_samples: int = 0
    unscored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks without any score, and why."""
    clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What each task was drawn together with; a task that is not here was drawn by itself."""
    samples: Mapping[str, Sequence[float | None]] = field(default_factory=dict[str, Sequence[float | None]])
    """The reward of every sample of each task; None for one that failed on our side."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Evaluations on a test set."""

    before: int = 0
    """In earlier experiments."""
    experiments: int = 0
    """How many experiments those were."""
    here: int = 0
    """In this experiment."""


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """One run with one seed."""

    arm: str
    run: str
    seed: int
    status: str | None = None
    """None: it has no result, because it never started or was aborted."""
    error: str | None = None
    unscored: str | None = None
    at_deadline: bool = False
    """Whether it was scored before its planned end, because time ran out."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    scorings: Mapping[SetKey, ScoredSet] = field(default_factory=dict[SetKey, ScoredSet])
    """The last scoring of each benchmark."""
    tokens: int | None = None
    usd: float | None = None

    @property
    def problem(self) -> str | None:
        """Why this arm may not win; None for one that ended well."""
        if self.status == "failed":
            return f"it failed: {self.error or 'no reason was recorded'}"
        partly = next((one for one in self.scorings.values() if one.unscored and one.key[0] != BASELINE), None)
        if self.unscored is None and partly is not None:
            task, why = next(iter(partly.unscored.items()))
            return f"{len(partly.unscored)} tasks of {'/'.join(partly.key)} have no score, first '{task}': {why}"
        return self.unscored

    @property
    def ended(self) -> bool:
        """Whether it was trained to its end, so that its scores are those of the recipe."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """All seeds of one recipe."""

    name: str
    arms: Sequence[ArmEvidence]
    tags: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The config of the run by dotted path, so that it can be said what differs."""

    @property
    def problems(self) -> dict[str, str]:
        """Its arms that failed or are not scored."""
        return {arm.arm: arm.problem for arm in self.arms if arm.problem is not None}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a conclusion is drawn from."""

    experiment: str
    metadata: Metadata
    runs: Sequence[RunEvidence]
    """In the order of the config."""
    registered: bool = False
    """Whether the journal holds what was claimed before the first step."""
    registered_sha256: str | None = None
    contradicted: str | None = None
    """What in the record contradicts it, as the audit says."""
    invalidated: str | None = None
    stopped: str | None = None
    """Why the experiment was stopped before its end."""
    looks: Mapping[str, Looks] = field(default_factory=dict[str, Looks])
    """How often earlier experiments scored a test set, by the sha256 of its tasks."""
    parent: RunEvidence | None = None
    """The run that this experiment continues from; the baseline where no other one is given."""
    attempt: int | None = None
    """Which attempt at this claim it is, counted from 1; None where no one counts."""
    interim: Sequence[int] = ()
    """Numbers of seeds at which a verdict was planned to be drawn, the last one included; empty: once."""
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    """What was measured and with what: model, verifier, code ... as names or hashes."""
    flags: Sequence[str] = ()
    """What the audit of the record flagged: facts, each with the name of its check."""
    remarks: Sequence[str] = ()
    """What the audit noticed that changes no verdict."""
    findings: Sequence[str] = ()
    """What the diagnosis of training found."""
    backend: str = ""
    """Of all runs; empty where they differ."""
    deviations: Sequence[str] = ()
    """What did not go as planned: resumes, raised budgets."""

    def run(self, name: str) -> RunEvidence | None:
        return next((run for run in self.runs if run.name == name), None)

    @property
    def arms(self) -> list[ArmEvidence]:
        return [arm for run in self.runs for arm in run.arms]

    @property
    def planned_sets(self) -> list[SetKey]:
        """Benchmarks in the order of the config, then what else was scored."""
        planned = [(entry.role or "eval", entry.label or "") for entry in self.metadata.benchmark]
        scored = sorted({key for arm in self.arms for key in arm.scorings if key[0] != BASELINE})
        return list(dict.fromkeys([*planned, *scored]))


# What differs between the runs: the settings that a difference in scores can come from.


def find_differing_settings(runs: Sequence[RunEvidence]) -> dict[str, dict[str, Any]]:
    """Setting that is not the same in all runs -> its value in each; None where a run does not set it."""
    known = [run for run in runs if run.settings]
    paths = dict.fromkeys(path for run in known for path in run.settings)
    values = {path: {run.name: run.settings.get(path) for run in known} for path in paths}
    return {path: one for path, one in values.items() if len({json.dumps(v, sort_keys=True) for v in one.values()}) > 1}
