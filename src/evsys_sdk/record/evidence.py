"""Hashes of what a conclusion rests on, taken when it is made and compared when it is read.

The orchestrator writes them into the journal, whose own lines are chained, as soon as an arm has ended; so whoever
changes a score, an answer or a config afterwards contradicts a line that was written before.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .layout import ExperimentFiles, RunFiles
from .values import read_object

_DIGITS = 32
_RUN = RunFiles(Path())
_SEALED = [
    path.as_posix()
    for path in (
        _RUN.config,
        _RUN.datasets,
        _RUN.benchmarks,
        _RUN.identity,
        _RUN.scores,
        _RUN.logs.metrics,
        _RUN.checkpoints,
    )
]
"""Below the folder of an arm. Text, because a sweep has thousands of them and paths are slow."""
_SCORES = _RUN.scores.as_posix()


def hash_file(path: Path | str, *, at_least: int = 0) -> str | None:
    """The hash of a file's content; None where there is none, or it has fewer bytes."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None  # a file that is there and may not be read is an error: taken for none, it would count as removed
    return hashlib.sha256(content).hexdigest()[:_DIGITS] if len(content) >= at_least else None


def hash_value(value: Any) -> str:
    """The hash of a JSON value, however its keys are ordered."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def hash_recorded_config(folder: Path) -> str:
    """The hash of what the config of an experiment on disk says."""
    return hash_value(read_object(ExperimentFiles(folder).config))


def hash_conclusion_page(folder: Path) -> str | None:
    """The hash of the conclusion as people read it; None where there is none."""
    return hash_file(ExperimentFiles(folder).conclusion_page)


def seal_run(run_dir: Path) -> dict[str, str]:
    """The hash of every file of an ended arm that anything is concluded from, by its path below the arm's folder.

    Its result is not among them: a search adds to it why an arm was stopped. What it says is in the journal itself.
    """
    answers = [path.relative_to(run_dir).as_posix() for path in RunFiles(run_dir).all_predictions()]
    sealed = {name: hash_file(f"{run_dir}/{name}") for name in [*_SEALED, *answers]}
    return {name: found for name, found in sealed.items() if found is not None}


def broken_seals(run_dir: Path, sealed: dict[str, Any]) -> list[str]:
    """Files of an arm that are not what they were when it ended."""
    now = seal_run(run_dir)
    gone = [f"{name} is gone" for name in sealed if name not in now]
    # Of what versions before this one sealed as well: a later one knows more files.
    gone += [f"{name} appeared" for name in now if name not in sealed and (name == _SCORES or name not in _SEALED)]
    return gone + [f"{name} was changed" for name, found in sealed.items() if name in now and now[name] != found]
