"""Count the trials of a claim: repeated trials of one claim family share one error rate.

    register_claim(config, folder, "study-1f2e3d4c")     {"family": "9a...", "attempt": 3}

A family is identified by its task set (by `task_key`), metric, direction, models with their backends, and changed
settings, with values to two digits. Names, notes, verifiers, ids and the order of tasks do not matter. A claim about
another change has the full error rate. An experiment with the same arms, seeds, data, tasks and code as an earlier one
is the same evidence and no new trial. The trial number is written to the journal before the first step. Earlier trials
come from the records, and from a list that persists when records are removed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig, RunConfig
from ..config.metadata import BASE_MODEL, BenchmarkEntry
from ..config.search import success_of
from ..data.task_identity import task_key
from ..data.task_source import locate_rows
from ..errors import EvsysError
from ..eval.benchmark import Benchmark
from ..record.evidence import hash_file, hash_value
from ..record.flat_config import flatten_config
from ..record.layout import DRY_RUNS
from ..record.project_files.claims import Claimed, find_same_evidence, note_claim
from ..record.values import text
from .arms.arm import expand_arms
from .arms.overrides import DRY_RUN_ROWS
from .audit.identity import hash_evaluating_code, hash_own_code
from .benchmark_plan import load_entry
from .hypothesis import MEANS, Claim, find_claim

_BASELINE = "baseline"
_NOT_SETTINGS = {"name", "seed", "tags", "eval"}
_TRAINS_NOTHING = ("save_every", "save_at_fractions", "eval_every", "keep_checkpoints")
_KEPT = 64
"""Maximum number of task hashes to store."""


def register_claim(config: ExperimentConfig, folder: Path, experiment: str) -> dict[str, Any]:
    """Count an experiment before its start or extension as a trial; return the fields for its journal."""
    if is_dry_run(config, folder):  # a dry run tests nothing, so it is no trial
        return {}
    benchmarks = _load_all(config.metadata.benchmark)
    evidence = _identify_evidence(config, benchmarks)
    claim = identify_claim(config, benchmarks, evidence)
    same = find_same_evidence(evidence, folder)
    found: dict[str, Any] = {"same_evidence": text(same.get("experiment"))} if same else {}
    if claim is None:
        return {"evidence": evidence, **found}
    # For another claim, the same evidence is a new trial.
    attempt = same.get("attempt") if claim.is_family_of(same) else note_claim(experiment, claim, folder)
    return {**asdict(claim), **found, "attempt": attempt}


def is_dry_run(config: ExperimentConfig, folder: Path) -> bool:
    """Whether an experiment is in the folder of dry runs and has at most as many tasks as a dry run."""
    few = all((entry.n_tasks or math.inf) <= DRY_RUN_ROWS for entry in config.metadata.benchmark)
    return few and folder.resolve().parent.name == DRY_RUNS


def identify_claim(config: ExperimentConfig, benchmarks: Sequence[Benchmark], evidence: str) -> Claimed | None:
    """Identify the claim and its family; None without a structured claim or benchmarks."""
    claim = find_claim(config.metadata)
    if claim is None or not benchmarks:
        return None
    runs = config.all_runs()
    success = success_of(config.metadata)
    metric = (claim.metric or (success.name if success else "")).rpartition("/")[2]
    named = sorted({(run.model.name, run.backend.kind) for run in runs})
    about = hash_value([MEANS[0] if metric in MEANS else metric, claim.direction, named])
    asked = {task_key(task) for benchmark in benchmarks for task in benchmark.tasks}
    tasks = sorted(hashlib.sha256(key.encode()).hexdigest()[:12] for key in asked)[:_KEPT]
    changes = sorted({hash_value(change) for change in _list_changes(runs, claim)})
    return Claimed(hash_value([about, tasks, changes]), about, changes, tasks, evidence)


def _list_changes(runs: Sequence[RunConfig], claim: Claim) -> Iterator[Mapping[str, Any]]:
    """Yield the settings that each run changes relative to the baseline, or all settings if the baseline is no run."""
    recipes = {run.name: _settings(run) for run in runs}
    if claim.kind == "trend":
        yield {str(claim.axis): sorted(str(recipe.get(str(claim.axis))) for recipe in recipes.values())}
        return
    names = [claim.baseline or _BASELINE, *(run.name for run in runs if _BASELINE in run.tags)]
    base = next((name for name in names if name in recipes), None)
    if base is None and claim.level is None and claim.baseline != BASE_MODEL and len(runs) > 1:
        base = runs[0].name
    known = recipes.get(base or "", {})
    for name, recipe in recipes.items():
        if name != base:
            paths = sorted(path for path in {*recipe, *known} if recipe.get(path) != known.get(path))
            yield {path: [known.get(path), recipe.get(path)] for path in paths}


def _settings(run: RunConfig) -> dict[str, Any]:
    flat = flatten_config(run.model_dump(mode="json", exclude=_NOT_SETTINGS))
    return {path: _round(value) for path, value in flat.items() if path.rpartition(".")[2] not in _TRAINS_NOTHING}


def _round(value: Any) -> Any:
    return float(f"{value:.2g}") if isinstance(value, int | float) and not isinstance(value, bool) else value


def _identify_evidence(config: ExperimentConfig, benchmarks: Sequence[Benchmark]) -> str:
    runs = config.all_runs()
    sources = {stage.data.path for run in runs for stage in run.stages() if stage.data and stage.data.path}
    entries = [entry.model_dump(mode="json", exclude_defaults=True) for entry in config.metadata.benchmark]
    return hash_value(
        [
            sorted(arm.id for arm in expand_arms(config)),
            config.search and config.search.model_dump(mode="json"),
            entries,
            [benchmark.sha256 for benchmark in benchmarks],
            {path: hash_file(locate_rows(path)) for path in sorted(sources)},
            {name: code for run in runs for name, code in hash_own_code(run).items()}
            | hash_evaluating_code(benchmarks),
        ]
    )


def _load_all(entries: Sequence[BenchmarkEntry]) -> list[Benchmark]:
    try:
        return [load_entry(entry) for entry in entries]
    except EvsysError:  # reported when the benchmark is needed
        return []
