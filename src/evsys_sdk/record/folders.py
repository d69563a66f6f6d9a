"""Create and complete the folders of experiments and runs. Repetitions get a number; nothing is overwritten."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, Problem
from ..files import write_json, write_text
from .jsonl_file import JsonlFile, complete_lines
from .layout import ExperimentFiles, RunFiles, find_begun, run_folders
from .run_files.metrics import COMPUTE_S
from .values import Object, load_object, mtime, number, part, read_lines, read_object, subfolders

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""Errors of a rename onto an existing path."""


def find_attempts(base: Path) -> dict[int, Path]:
    """The attempts of an experiment by number: folders that have a config."""
    attempts = {1: base} if ExperimentFiles(base).config.exists() else {}
    for path in base.parent.glob(f"{glob.escape(base.name)}.*"):
        suffix = path.name.removeprefix(f"{base.name}.")
        if suffix.isdecimal() and ExperimentFiles(path).config.exists():
            attempts[int(suffix)] = path
    return attempts


def latest_attempt(base: Path) -> Path | None:
    """The last attempt of an experiment; refuses a folder of that name that is no experiment."""
    foreign = base.exists() and not (base.is_dir() and not any(base.iterdir()))
    attempts = find_attempts(base)  # after `foreign`, because another process may create the folder meanwhile
    if foreign and not attempts:
        hint = "Choose another output_dir or name, or move that folder away."
        raise ConfigError(Problem(f"the folder {base} exists and is not the record of an experiment", hint=hint))
    return attempts[max(attempts)] if attempts else None


def create_attempt(base: Path, config: Object) -> Path:
    """Create the folder of the next attempt, atomically with its config."""
    base.parent.mkdir(parents=True, exist_ok=True)
    staged = base.with_name(f".{base.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    write_json(ExperimentFiles(staged).config, config)
    number = max(find_attempts(base), default=0)
    while True:  # another process may take the number before the rename
        number += 1
        path = base if number == 1 else base.with_name(f"{base.name}.{number}")
        try:
            staged.rename(path)  # replaces only an empty folder
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return path


def write_config(folder: Path, config: Object) -> None:
    """Replace the config of an experiment that continues."""
    write_json(ExperimentFiles(folder).config, config)


def begin_run(run_dir: Path, config: Object) -> int:
    """Record a start of a run, and return the number of its starts."""
    files = RunFiles(run_dir)
    files.folder.mkdir(parents=True, exist_ok=True)
    files.result.unlink(missing_ok=True)  # a run that continues has no result
    write_json(files.config, config)
    # After the config, so that a reader that finds a start also finds the config.
    with JsonlFile(files.starts) as starts:
        starts.append({"time": time.time(), "pid": os.getpid()})
    return sum(1 for _ in complete_lines(files.starts))


def note_length(run_dir: Path, total_steps: int | None, *, measure: str = "loss", mode: str = "min") -> None:
    """Record the planned steps of a run, its progress metric, and the direction of that."""
    write_json(RunFiles(run_dir).progress, {"total_steps": total_steps, "measure": measure, "mode": mode})


def note_identity(run_dir: Path, identity: Object) -> None:
    """Record the weights, code and packages of a run."""
    write_json(RunFiles(run_dir).identity, identity)


def write_result(run_dir: Path, result: Object, *, hparams: Object) -> None:
    """Record the result of a run."""
    write_json(RunFiles(run_dir).result, {**result, "hparams": hparams, "ts": time.time()})


def load_result(run_dir: Path) -> Object | None:
    """The result of a run; None if it has none. A damaged file is an error."""
    path = RunFiles(run_dir).result
    return load_object(path) if path.exists() else None


def write_conclusion(folder: Path, *, page: str, content: str) -> None:
    """Write a conclusion as a page and as JSON, each atomically."""
    files = ExperimentFiles(folder)
    write_text(files.conclusion_page, page)
    write_text(files.conclusion, content)  # last, because programs check for it


def read_conclusion(folder: Path) -> str | None:
    """The text of the conclusion's JSON file; None without one."""
    path = ExperimentFiles(folder).conclusion
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def read_conclusion_page(folder: Path) -> str | None:
    """The text of the conclusion's page; None without one."""
    path = ExperimentFiles(folder).conclusion_page
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def conclusions_below(root: Path) -> list[tuple[float, str, Object]]:
    """Time, folder name and conclusion of each concluded experiment below a root, without damaged files."""
    files = [ExperimentFiles(root / name).conclusion for name in subfolders(root)]
    return [
        (mtime(file) or 0.0, file.parent.name, conclusion)
        for file in files
        if (conclusion := read_object(file)) is not None
    ]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The measured times of a run."""

    config: Object
    result: Object | None
    """None if the run has not ended."""
    steps: list[tuple[float, float]]
    """Tokens and seconds of each step."""
    scorings: list[tuple[float, float]]
    """Tokens (read and written) and seconds of the scorings after the last step, when no training ran."""


def latest_run_times(root: Path, most: int, matches: Callable[[Object], bool]) -> Iterator[RunTimes]:
    """The times of the latest runs below a root whose config `matches`, newest first, without damaged ones."""
    ended = [(mtime(RunFiles(folder).result) or 0.0, folder) for folder in run_folders(root)]
    begun = [(mtime(RunFiles(folder).config) or 0.0, folder) for folder in find_begun(root)]
    for _, folder in sorted([*ended, *begun], reverse=True)[:most]:
        files = RunFiles(folder)
        result = read_object(files.result) if files.result.exists() else None
        config = part(result, "hparams") if result is not None else read_object(files.config)
        if config and matches(config):
            yield RunTimes(config, result, *_read_times(files))


def _read_times(files: RunFiles) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    logged = {number(line.get("step")): number(line.get("tokens")) for line in read_lines(files.logs.metrics)}
    steps: list[tuple[float, float]] = []
    for line in read_lines(files.logs.timing):
        tokens = logged.get(number(line.get("step")))
        # The compute time if the engine reports it, because a step may have waited for a concurrent scoring.
        step_s = number(line.get(COMPUTE_S)) or number(line.get("time/step_s")) or 0.0
        seconds = step_s + (number(line.get("time/build_s")) or 0.0)
        if tokens and seconds:
            steps.append((tokens, seconds))
    last = max((step for step in logged if step is not None), default=None)
    scorings = [
        (tokens, seconds)
        for line in read_lines(files.scores)
        if (tokens := number(line.get("tokens"))) and (seconds := number(line.get("seconds")))
        if number(line.get("step")) == last
    ]
    return steps, scorings
