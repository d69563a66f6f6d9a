"""How often a claim has been tried: who tries often enough finds something by luck.

    register_claim(config, folder, "study-1f2e3d4c")     {"family": "9a...", "attempt": 3}

Two experiments try the same if they ask the same tasks, by what these say, for the same metric, of something compared
with the same baseline recipe. How experiment, runs, benchmark or tasks are called, noted or stored is no difference,
nor are tasks that were added or left out, as long as half of the smaller set is the same.
The number is fixed in the journal before the first step. Earlier attempts are known from the records in every folder
that the project writes to, and from a list in its workspace, which stays when records are removed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig
from ..config.metadata import BASE_MODEL, BenchmarkEntry
from ..data.task_identity import task_key, task_set_key
from ..errors import EvsysError
from ..eval.benchmark import Benchmark
from ..record.evidence import hash_value
from ..record.layout import REHEARSALS
from ..record.project_files.claims import Claimed, note_claim, sketch_questions
from .arms.overrides import DRY_RUN_ROWS
from .benchmark_plan import load_entry
from .hypothesis import Claim, find_claim

_BASELINE = "baseline"
_NAMES = frozenset({"name", "seed", "tags"})
"""What tells recipes apart without being part of them."""


def register_claim(config: ExperimentConfig, folder: Path, experiment: str) -> dict[str, Any]:
    """Count an experiment that is about to start; what its journal is to say of that, if it claims anything."""
    if is_rehearsal(config, folder):  # it can show nothing, so that it is no attempt
        return {}
    claim = identify_claim(config)
    if claim is None:  # who only looks now may claim later
        return {**sketch_questions(_hash_questions(_load_all(config.metadata.benchmark)))}
    earlier = note_claim(experiment, claim, folder)
    return {**asdict(claim), "attempt": len(earlier) + 1, "earlier_attempts": earlier}


def is_rehearsal(config: ExperimentConfig, folder: Path) -> bool:
    """Whether an experiment lies where rehearsals do and asks as few tasks as they do: nothing is learned from it."""
    few = all((entry.n_tasks or math.inf) <= DRY_RUN_ROWS for entry in config.metadata.benchmark)
    return few and folder.resolve().parent.name == REHEARSALS


def identify_claim(config: ExperimentConfig) -> Claimed | None:
    """What a claim is about; None where nothing is claimed that tasks could answer."""
    claim = find_claim(config.metadata)
    if claim is None or not config.metadata.benchmark:
        return None
    metric, entries = _resolve_metric(claim, config.metadata.benchmark)
    benchmarks = _load_all(entries)
    if not benchmarks:
        return None
    tasks = task_set_key(task for benchmark in benchmarks for task in benchmark.tasks)
    about = [metric, claim.direction, _find_baseline(config, claim)]
    return Claimed(hash_value([tasks, *about]), hash_value(about), **sketch_questions(_hash_questions(benchmarks)))


def _load_all(entries: Sequence[BenchmarkEntry]) -> list[Benchmark]:
    try:
        return [load_entry(entry) for entry in entries]
    except EvsysError:  # it is said where the benchmark is needed
        return []


def _hash_questions(benchmarks: Iterable[Benchmark]) -> set[str]:
    keys = {task_key(task) for benchmark in benchmarks for task in benchmark.tasks}
    return {hashlib.sha256(key.encode()).hexdigest()[:12] for key in keys}


def _resolve_metric(claim: Claim, entries: list[BenchmarkEntry]) -> tuple[str | None, list[BenchmarkEntry]]:
    """The metric without the name of its benchmark, and that benchmark; all of them where it names none."""
    for entry in entries:
        place = f"{entry.role or 'eval'}/{entry.label}/"
        if claim.metric is not None and claim.metric.startswith(place):
            return claim.metric.removeprefix(place), [entry]
    return claim.metric, entries


def _find_baseline(config: ExperimentConfig, claim: Claim) -> Any:
    """The recipe that the others are compared with, as far as a config tells."""
    if claim.level is not None:
        return None
    runs = config.all_runs()
    wanted = claim.baseline or _BASELINE
    named = next((run for run in runs if run.name == wanted), None)
    if named is None and claim.baseline == BASE_MODEL:
        return [BASE_MODEL, sorted({run.model.name for run in runs})]
    tagged = next((run for run in runs if _BASELINE in run.tags), runs[0])
    return (named or tagged).model_dump(mode="json", exclude=set(_NAMES))
