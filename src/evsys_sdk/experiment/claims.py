"""How often a claim has been tried: who tries often enough finds something by luck.

    register_claim(config, folder, "study-1f2e3d4c")     {"family": "9a...", "attempt": 3}

Two experiments try the same if they ask the same tasks, by what these say, for the same metric, of something compared
with the same baseline recipe. How experiment, runs, benchmark or tasks are called, noted or stored is no difference.
The number is fixed in the journal before the first step. Earlier attempts are known from the records in every folder
that the project writes to, and from a list in its workspace, which stays when records are removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig
from ..config.metadata import BASE_MODEL, BenchmarkEntry
from ..errors import EvsysError
from ..log import get_logger
from ..paths import project_root, workspace_dir
from ..record.events import Kind, first_event
from ..record.evidence import hash_value
from ..record.jsonl_file import JsonlFile, read_records
from ..record.layout import CLAIMS, DEFAULT_ROOT, REHEARSALS, lock_beside
from ..record.lock import exclusive
from ..record.reader import ExperimentRecord
from ..record.roots import is_lasting, read_output_roots
from ..record.values import Object, subfolders, text
from .benchmark_plan import load_entry
from .hypothesis import Claim, find_claim

_BASELINE = "baseline"
_NAMES = frozenset({"name", "seed", "tags"})
"""What tells recipes apart without being part of them."""


def register_claim(config: ExperimentConfig, folder: Path, experiment: str) -> dict[str, Any]:
    """Note that an experiment is about to try its claim; what its journal is to say of that, if it claims anything."""
    root = folder.resolve().parent
    if root.name == REHEARSALS or (family := identify_family(config)) is None:
        return {}
    claim: dict[str, Any] = {"experiment": experiment, "family": family, "path": str(folder.resolve())}
    if not is_lasting(root):
        return {"family": family, "attempt": _count_earlier(claim, root) + 1}
    file = workspace_dir() / CLAIMS
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            claim |= {"attempt": _count_earlier(claim, root) + 1, "time": time.time()}
            claims.append(claim)
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: this claim could not be noted: %s", file, error)
        claim["attempt"] = _count_earlier(claim, root) + 1
    return {"family": family, "attempt": claim["attempt"]}


def read_claims() -> Iterator[Object]:
    """Every claim in the workspace's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def identify_family(config: ExperimentConfig) -> str | None:
    """The hash of what a claim is about; None where nothing is claimed that tasks could answer."""
    claim = find_claim(config.metadata)
    if claim is None or not config.metadata.benchmark:
        return None
    metric, entries = _resolve_metric(claim, config.metadata.benchmark)
    try:
        tasks = sorted(load_entry(entry).content for entry in entries)
    except EvsysError:  # it is said where the benchmark is needed
        return None
    return hash_value([tasks, metric, claim.direction, _find_baseline(config, claim)])


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


def _count_earlier(claim: Object, root: Path) -> int:
    """How many other experiments have tried the same."""
    roots = dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()])
    told = [*read_claims(), *(one for place in roots for one in _claims_below(place))]
    same = {text(one.get("experiment")): one for one in told if one.get("family") == claim["family"]}
    return sum(_was_tried(one) for name, one in same.items() if name and name != claim["experiment"])


def _claims_below(root: Path) -> Iterator[Object]:
    for name in subfolders(root):
        first = first_event(root / name)
        if first is not None and first.text("family"):
            yield {"experiment": first.text("experiment_id"), "family": first.text("family"), "path": str(root / name)}


def _was_tried(claim: Object) -> bool:
    """Whether somebody may have seen a score of it: not where it ended, or was killed, before it had any."""
    record = ExperimentRecord(Path(text(claim.get("path"))))
    if record.experiment_id != claim.get("experiment"):  # it was removed, so nothing shows that there was none
        return True
    return any(event.kind == Kind.SCORED for event in record.events) or record.is_running
