"""Hashes of the files that a conclusion depends on, written when an arm ends and recomputed when they are read.

The orchestrator writes them into the journal, whose lines are chained, so that a later change of a score, an answer or
a config is detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .events import Event, Kind, load_events
from .layout import ExperimentFiles, Place, RunFiles
from .values import part, read_object, text

_DIGITS = 32
_RUN = RunFiles(Path())
_NOT_SEALED = {RunFiles.result.name, RunFiles.lock.name, RunFiles.dropped_checkpoints.name}
_SEALED = [
    place.name for place in vars(RunFiles).values() if isinstance(place, Place) and place.name not in _NOT_SEALED
]
"""Hashed files of an arm's folder; its result is hashed separately, and weights may be removed to save space."""
_SCORES = RunFiles.scores.name
_ANSWERS = _RUN.predictions("", 0).parts[0]
_NOTED_LATER = ("stopped_by_search", "unscored")
"""Fields that a search adds to the result of an arm that it stopped."""


def hash_file(path: Path | str) -> str | None:
    """The hash of a file's content; None if it is missing."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None  # a file that exists and cannot be read raises, because None means that it was removed


def hash_value(value: Any) -> str:
    """The hash of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def hash_recorded_config(folder: Path) -> str:
    """The hash of the config in an experiment's folder."""
    return hash_value(read_object(ExperimentFiles(folder).config))


def hash_conclusion_page(folder: Path) -> str | None:
    """The hash of the conclusion's page; None without one."""
    return hash_file(ExperimentFiles(folder).conclusion_page)


def seal_run(run_dir: Path) -> dict[str, str]:
    """The hash of every recorded file of an ended arm, by its path in the arm's folder."""
    files = RunFiles(run_dir)
    logged = [*files.logs.folder.rglob("*.json"), *files.logs.folder.rglob("*.jsonl"), *files.all_predictions()]
    names = [*_SEALED, *sorted(path.relative_to(run_dir).as_posix() for path in logged)]
    sealed = {name: hash_file(f"{run_dir}/{name}") for name in names}
    return {name: sha256 for name, sha256 in sealed.items() if sha256 is not None}


def hash_result(run_dir: Path) -> str:
    """The hash of an arm's result, without the fields that a search adds later."""
    result = read_object(RunFiles(run_dir).result) or {}
    extras = {name: value for name, value in part(result, "extras").items() if name not in _NOTED_LATER}
    return hash_value([result.get(name) for name in ("status", "metrics", "artifacts", "hparams")] + [extras])


def seal_ledger(folder: Path, *, size: int | None = None) -> dict[str, Any]:
    """Size and hash of the first `size` bytes of an experiment's ledger, which only grows; by default of all."""
    try:
        content = ExperimentFiles(folder).spend.read_bytes()[:size]
    except FileNotFoundError:
        content = b""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()[:_DIGITS]}


def broken_seals(run_dir: Path, sealed: dict[str, Any]) -> list[str]:
    """The files of an arm that were removed, added or changed since it ended."""
    now = seal_run(run_dir)
    problems = [f"{name} is gone" for name in sealed if name not in now]
    # Earlier versions hashed fewer files.
    problems += [
        f"{name} appeared" for name in now if name not in sealed and name.partition("/")[0] in (_SCORES, _ANSWERS)
    ]
    return problems + [f"{name} was changed" for name, sha256 in sealed.items() if name in now and now[name] != sha256]


def hash_weights(folder: Path, *, without: Collection[str] = ()) -> str | None:
    """The hash of the names and contents of stored weights; None if `folder` is no local folder with files.

    `without` names top-level files and folders to leave out.
    """
    paths = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] not in without)
    files = sorted(path for path in paths if path.is_file()) if folder.is_dir() else []
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest()[:_DIGITS] if files else None


def seal_weights(run_dir: Path) -> dict[str, str]:
    """The hash of each stored state and sampler of an ended arm, by its path in the arm's folder."""
    hashes = {path: hash_weights(path) for path in sorted(RunFiles(run_dir).stored.glob("*/*"))}
    return {path.relative_to(run_dir).as_posix(): sha256 for path, sha256 in hashes.items() if sha256 is not None}


def find_replaced_weights(run_dir: Path, events: Iterable[Event], *, only: Path | None = None) -> Iterator[str]:
    """Problems of stored weights that differ from the hashes noted at a scoring or at the end of the arm.

    Deleted weights are not reported. `only` limits the check to one folder.
    """
    recorded: dict[str, list[str]] = {}
    for event in events:
        if event.kind in (Kind.SCORED, Kind.ARM_ENDED) and event.text("arm") == run_dir.name:
            for name, sha256 in event.part("weights").items():
                recorded.setdefault(name, []).append(text(sha256))
    for name, hashes in recorded.items():
        folder = run_dir / name
        if only is not None and folder.resolve() != only.resolve():
            continue
        now = hash_weights(folder)
        changed = next((sha256 for sha256 in hashes if sha256 != now), None)
        if now is not None and changed is not None:
            yield f"{folder}: recorded weights have sha256 {changed[:12]}, the stored weights have {now[:12]}"


def find_run_of(checkpoint: Path) -> Path | None:
    """The folder of the recorded arm that stored a checkpoint; None for weights outside of records."""
    run_dir = checkpoint.parent.parent.parent
    is_stored = checkpoint.parent.parent.name == RunFiles.stored.name
    return run_dir if is_stored and ExperimentFiles(run_dir.parent).journal.is_file() else None


def check_weights(folder: Path) -> None:
    """Refuse weights that differ from the recorded ones; weights outside of records pass."""
    run_dir = find_run_of(folder)
    if run_dir is None:
        return
    for problem in find_replaced_weights(run_dir, load_events(run_dir.parent), only=folder):
        raise DataError(f"{problem}. Restore the original files, or use another checkpoint.")
