"""The record of an experiment as plain values: every arm with its result, scores by task and cost.

`reading.py` reads them from the folder of an experiment. An arm that never started is an arm without a result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...config import Metadata

BASELINE = "baseline"
"""Split of the scores of models other than the trained one."""

type SetKey = tuple[str, str]
"""Split and label of a benchmark."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one evaluation."""

    value: float
    per_task: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ScoredSet:
    """The scores of one model on one benchmark."""

    key: SetKey
    step: int
    sha256: str
    scores: Mapping[str, Score]
    failed_samples: int = 0
    unscored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Task without a score -> reason."""
    clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Task -> its cluster; a task without an entry is a cluster by itself."""
    samples: Mapping[str, Sequence[float | None]] = field(default_factory=dict[str, Sequence[float | None]])
    """Task -> the reward of each sample; None for a sample that failed for technical reasons."""
    n_samples: int = 0
    """Number of samples with a score."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Numbers of evaluations on a test set."""

    before: int = 0
    """Evaluations in earlier experiments."""
    experiments: int = 0
    """Number of these experiments."""
    here: int = 0
    """Evaluations in this experiment."""


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """One run with one seed."""

    arm: str
    run: str
    seed: int
    status: str | None = None
    """None if the arm has no result, because it never started or was aborted."""
    error: str | None = None
    unscored: str | None = None
    at_deadline: bool = False
    """Whether the deadline ended training early."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    scorings: Mapping[SetKey, ScoredSet] = field(default_factory=dict[SetKey, ScoredSet])
    """The last scoring of each benchmark."""
    tokens: int | None = None
    usd: float | None = None

    @property
    def problem(self) -> str | None:
        """Why this arm failed or is not fully scored; None if there is no problem."""
        if self.status == "failed":
            return f"it failed: {self.error or 'no reason was recorded'}"
        partly = next((one for one in self.scorings.values() if one.unscored and one.key[0] != BASELINE), None)
        if self.unscored is None and partly is not None:
            task, why = next(iter(partly.unscored.items()))
            return f"{len(partly.unscored)} tasks of {'/'.join(partly.key)} have no score, first '{task}': {why}"
        return self.unscored

    @property
    def ended(self) -> bool:
        """Whether the arm completed."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """All seeds of one recipe."""

    name: str
    arms: Sequence[ArmEvidence]
    tags: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The config of the run by dotted path."""

    @property
    def problems(self) -> dict[str, str]:
        """Arm that failed or is not scored -> reason."""
        return {arm.arm: arm.problem for arm in self.arms if arm.problem is not None}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of a conclusion."""

    experiment: str
    metadata: Metadata
    runs: Sequence[RunEvidence]
    """In the order of the config."""
    registered: bool = False
    """Whether the journal contains a hash of the hypothesis from before the first step."""
    registered_sha256: str | None = None
    contradicted: str | None = None
    """The audit flag that invalidates the record; None if there is none."""
    invalidated: str | None = None
    stopped: str | None = None
    """Why the experiment was stopped before its end."""
    looks: Mapping[str, Looks] = field(default_factory=dict[str, Looks])
    """sha256 of the tasks of a test set -> its evaluations in this and earlier experiments."""
    parent: RunEvidence | None = None
    """The run that this experiment continues from; the baseline if no other one is given."""
    attempt: int | None = None
    """Trial number of this claim, from 1; None if trials are not counted."""
    interim: Sequence[int] = ()
    """Planned numbers of seeds per interim analysis, ascending, with the last one; empty for a single analysis."""
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    """Model, verifiers and packages, as names or hashes."""
    flags: Sequence[str] = ()
    """Flags of the audit, each with the name of its check."""
    remarks: Sequence[str] = ()
    """Remarks of the audit, which do not affect the verdict."""
    findings: Sequence[str] = ()
    """Findings of the diagnosis of training."""
    backend: str = ""
    """Backend of all runs; empty if they differ."""
    deviations: Sequence[str] = ()
    """Deviations from the plan, such as resumes and changed settings."""

    def run(self, name: str) -> RunEvidence | None:
        return next((run for run in self.runs if run.name == name), None)

    @property
    def arms(self) -> list[ArmEvidence]:
        return [arm for run in self.runs for arm in run.arms]

    @property
    def planned_sets(self) -> list[SetKey]:
        """Benchmarks in the order of the config, then other scored sets."""
        planned = [(entry.role or "eval", entry.label or "") for entry in self.metadata.benchmark]
        scored = sorted({key for arm in self.arms for key in arm.scorings if key[0] != BASELINE})
        return list(dict.fromkeys([*planned, *scored]))


def find_differing_settings(runs: Sequence[RunEvidence]) -> dict[str, dict[str, Any]]:
    """Setting that differs between runs -> run -> value; the value is None if the run does not set it."""
    known = [run for run in runs if run.settings]
    paths = dict.fromkeys(path for run in known for path in run.settings)
    values = {path: {run.name: run.settings.get(path) for run in known} for path in paths}
    return {path: one for path, one in values.items() if len({json.dumps(v, sort_keys=True) for v in one.values()}) > 1}
