"""What an experiment could show, before anything is spent: the rule of its verdict and the effects it would see.

The noise is that of an earlier experiment on the same tasks, where its conclusion is on record; else it is assumed to
be that of a typical fine-tuning experiment in which about half of the tasks are solved.
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

_REPORT_ORDER = ("test", None, "val")  # which set a verdict is about, of those that there are
_SEED_SD = 0.02
"""Two points from seed to seed, beyond what the answers to single tasks explain."""
_ANSWER_VARIANCE = 0.2
"""Of one answer, where tasks differ in how hard they are."""
_INTERACTION_VARIANCE = 0.008
"""Of the difference of two recipes from task to task, beyond the noise of answers."""
_TASK_VARIANCE = 0.045
"""Of how often a task is solved, from task to task; this counts where a level is claimed, and nothing is paired."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The rule of the verdict, and what it lets through."""

    rule: str
    seeds: int
    candidates: int
    tasks: int | None = None
    clusters: int | None = None
    samples: int | None = None
    detectable: float | None = None
    """True effect beyond the claimed limit that is seen in 80 % of experiments."""
    claimed: float | None = None
    seeds_needed: int | None = None
    """Seeds a run that would show the claimed effect; None where no sensible number does, or nothing is claimed."""
    basis: str = ""
    """Where the noise comes from, as a sentence."""
    looks: tuple[int, ...] = ()
    """With `until: decided`: seeds a run at which the claim is judged."""


def expect_sensitivity(config: ExperimentConfig) -> Sensitivity | None:
    """What the experiment could show; None where nothing is claimed."""
    claim = find_claim(config.metadata)
    if claim is None:
        return None
    entries = config.metadata.benchmark
    entry = min(entries, key=lambda one: _REPORT_ORDER.index(one.role), default=None)
    validated = entry is not None and entry.role != "val" and any(one.role == "val" for one in entries)
    runs = len(config.all_runs())
    frozen = claim.kind == "at_least" or (runs == 1 and any(BASE_MODEL in one.models for one in entries))
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
    """The error rate of the look that decides in the end."""
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
    """The noise to expect, where it comes from in words, and how many clusters the tasks have."""
    named = {str(task.metadata["cluster"]) for task in tasks if "cluster" in task.metadata}
    alone = sum("cluster" not in task.metadata for task in tasks)
    independent = len(named) + alone
    answers = _ANSWER_VARIANCE / entry.samples / len(tasks)
    earlier = read_seed_sd(in_project(config.output_dir), sha256, config)
    # Differences between seeds include sampling variance of single answers, which is counted separately.
    training = _SEED_SD**2 if earlier is None else max(0.0, earlier[0] ** 2 - answers)
    basis = (
        "the noise of seeds is assumed: no earlier experiment scored these tasks"
        if earlier is None
        else f"the noise of seeds is that of {earlier[1]}, on the same tasks"
    )
    spread = _TASK_VARIANCE if claim.kind == "at_least" else _INTERACTION_VARIANCE
    prospect = Prospect(training, answers, spread / independent, independent - 1, candidates, frozen)
    return prospect, basis, len(named) + alone if named else None


def read_seed_sd(root: Path, sha256: str, config: ExperimentConfig) -> tuple[float, str] | None:
    """How far seeds lay apart in the latest experiment on the same tasks, and which one that was.

    Only an experiment with the same models on the same backends counts, and none that is flagged or invalidated.
    """
    asked = models_and_backends(run.model_dump(mode="json") for run in config.all_runs())
    found: list[tuple[float, float, str]] = []
    for moment, name, stored in conclusions_below(root):
        noise = part(stored, "noise_floor")
        if stored.get("report_sha256") == sha256 and (sd := number(noise.get("seed_sd"))) is not None:
            record = ExperimentRecord(root / name)
            same = models_and_backends(config_runs(record.config or {})) == asked
            if same and not (record.flags or record.invalidated or items(stored.get("flags"))):
                found.append((moment, sd, name))
    return max(found)[1:] if found else None
