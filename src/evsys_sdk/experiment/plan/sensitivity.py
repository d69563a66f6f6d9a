"""The sensitivity of a planned experiment: the decision rule and the effects that it could detect.

The noise is that of an earlier experiment on the same tasks if one is on record. Otherwise it is assumed to be that of
a typical fine-tuning experiment in which about half of the tasks are solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import ExperimentConfig
from ...config.metadata import BASE_MODEL, BenchmarkEntry
from ...data.types import HarborTask
from ...paths import in_project
from ...record.folders import conclusions_below
from ...record.reader import ExperimentRecord
from ...record.runs import config_runs
from ...record.values import items, number, part
from ...record.view.question import models_and_backends
from ..benchmark_plan import load_entry
from ..hypothesis import Claim, find_claim
from ..statistics.attempts import FIRST_ERROR, look_errors
from ..statistics.power import Prospect

_REPORT_ORDER = ("test", None, "val")
"""A verdict is about the first of these roles that an entry has."""
_SEED_SD = 0.02
"""Standard deviation between seeds, without the noise of single answers."""
_ANSWER_VARIANCE = 0.2
"""Variance of one answer, for tasks of mixed difficulty."""
_INTERACTION_VARIANCE = 0.008
"""Variance between tasks of the difference of two recipes, without the noise of answers."""
_TASK_VARIANCE = 0.045
"""Variance between tasks of the solve rate; used for claims of a level, which are not paired."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The decision rule and the detectable effects."""

    rule: str
    seeds: int
    candidates: int
    tasks: int | None = None
    clusters: int | None = None
    samples: int | None = None
    detectable: float | None = None
    """True effect beyond the threshold that is detected with 80 % power."""
    claimed: float | None = None
    seeds_needed: int | None = None
    """Seeds per run that would detect the claimed effect; None without a claimed effect or a sensible number."""
    basis: str = ""
    """The source of the noise, as a sentence."""
    looks: tuple[int, ...] = ()
    """With `until: decided`: seeds per run at each interim analysis."""


def expect_sensitivity(config: ExperimentConfig) -> Sensitivity | None:
    """The sensitivity of an experiment; None without a claim."""
    claim = find_claim(config.metadata)
    if claim is None:
        return None
    entries = config.metadata.benchmark
    entry = min(entries, key=lambda entry: _REPORT_ORDER.index(entry.role), default=None)
    validated = entry is not None and entry.role != "val" and any(other.role == "val" for other in entries)
    runs = len(config.all_runs())
    frozen = claim.kind == "at_least" or (runs == 1 and any(BASE_MODEL in other.models for other in entries))
    candidates = runs if frozen else runs - 1
    metric = claim.metric or "the success metric"
    looks = tuple(config.planned_looks)
    rule = claim.rule(metric, validated=validated and candidates > 1, error=FIRST_ERROR, looks=looks)
    if entry is None or claim.kind == "trend" or candidates < 1 or config.n_repeats < 2:
        return Sensitivity(rule, config.n_repeats, candidates, looks=looks)
    benchmark = load_entry(entry)
    tasks = benchmark.tasks[: entry.n_tasks]
    prospect, basis, clusters = _prospect(config, claim, entry, tasks, benchmark.sha256, candidates, frozen=frozen)
    claimed = {"better": claim.min_effect or None, "not_worse": claim.margin}.get(claim.kind)
    detectable = prospect.detectable(config.n_repeats, claim.baseline_repeats, error=_last_error(looks))
    return Sensitivity(
        rule,
        config.n_repeats,
        candidates,
        tasks=len(tasks),
        clusters=clusters,
        samples=entry.samples,
        detectable=detectable,
        claimed=claimed,
        seeds_needed=None if claimed is None else prospect.seeds_needed(claimed),
        basis=basis,
        looks=looks,
    )


def _last_error(looks: tuple[int, ...]) -> float:
    """The error rate of the last analysis."""
    return look_errors(tuple(count / looks[-1] for count in looks), FIRST_ERROR)[-1] if looks else FIRST_ERROR


def _prospect(
    config: ExperimentConfig,
    claim: Claim,
    entry: BenchmarkEntry,
    tasks: Sequence[HarborTask],
    sha256: str,
    candidates: int,
    *,
    frozen: bool,
) -> tuple[Prospect, str, int | None]:
    """The expected noise, its source in words, and the number of clusters of the tasks."""
    named = {str(task.metadata["cluster"]) for task in tasks if "cluster" in task.metadata}
    single = sum("cluster" not in task.metadata for task in tasks)
    independent = len(named) + single
    answers = _ANSWER_VARIANCE / entry.samples / len(tasks)
    earlier = read_seed_sd(in_project(config.output_dir), sha256, config)
    # Differences between seeds include the variance of single answers, which `answers` counts already.
    training = _SEED_SD**2 if earlier is None else max(0.0, earlier[0] ** 2 - answers)
    basis = (
        "the noise of seeds is assumed: no earlier experiment scored these tasks"
        if earlier is None
        else f"the noise of seeds is that of {earlier[1]}, on the same tasks"
    )
    spread = _TASK_VARIANCE if claim.kind == "at_least" else _INTERACTION_VARIANCE
    prospect = Prospect(training, answers, spread / independent, independent - 1, candidates, frozen)
    return prospect, basis, independent if named else None


def read_seed_sd(root: Path, sha256: str, config: ExperimentConfig) -> tuple[float, str] | None:
    """The standard deviation between seeds in the latest experiment on the same tasks, and its name.

    Only experiments with the same models and backends count, without flagged and invalidated ones.
    """
    compared = models_and_backends(run.model_dump(mode="json") for run in config.all_runs())
    matches: list[tuple[float, float, str]] = []
    for moment, name, stored in conclusions_below(root):
        noise = part(stored, "noise_floor")
        if stored.get("report_sha256") == sha256 and (sd := number(noise.get("seed_sd"))) is not None:
            record = ExperimentRecord(root / name)
            same = models_and_backends(config_runs(record.config or {})) == compared
            if same and not (record.flags or record.invalidated or items(stored.get("flags"))):
                matches.append((moment, sd, name))
    return max(matches)[1:] if matches else None
