"""The folders of experiments and runs as they are made, begun and ended; never overwritten, numbered when repeated."""

from __future__ import annotations

import errno
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
"""How a file system says that there is something at a path already."""


def find_attempts(base: Path) -> dict[int, Path]:
    """The attempts at an experiment by number; only a folder with its config written counts as one."""
    found = {1: base} if ExperimentFiles(base).config.exists() else {}
    for path in base.parent.glob(f"{_escape(base.name)}.*"):
        suffix = path.name.removeprefix(f"{base.name}.")
        if suffix.isdecimal() and ExperimentFiles(path).config.exists():
            found[int(suffix)] = path
    return found


def latest_attempt(base: Path) -> Path | None:
    """The last attempt at an experiment; a folder of that name that is something else is refused."""
    foreign = base.exists() and not (base.is_dir() and not any(base.iterdir()))
    attempts = find_attempts(base)  # after that look: another experiment may be making the folder at this moment
    if foreign and not attempts:
        hint = "Choose another output_dir or name, or move that folder away."
        raise ConfigError(Problem(f"the folder {base} exists and is not the record of an experiment", hint=hint))
    return attempts[max(attempts)] if attempts else None


def create_attempt(base: Path, config: Object) -> Path:
    """Make the next attempt's folder, complete with its config from the first moment it is there."""
    base.parent.mkdir(parents=True, exist_ok=True)
    staged = base.with_name(f".{base.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    write_json(ExperimentFiles(staged).config, config)
    number = max(find_attempts(base), default=0)
    while True:  # another process may take a number between the look and the rename; the next one is tried then
        number += 1
        path = base if number == 1 else base.with_name(f"{base.name}.{number}")
        try:
            staged.rename(path)  # replaces an empty folder, but nothing else
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return path


def write_config(folder: Path, config: Object) -> None:
    """Note how an experiment that continues is run from now on."""
    write_json(ExperimentFiles(folder).config, config)


def begin_run(run_dir: Path, config: Object) -> int:
    """Note that a run starts, and return how often it has by now."""
    files = RunFiles(run_dir)
    files.folder.mkdir(parents=True, exist_ok=True)
    files.result.unlink(missing_ok=True)  # what continues has no result yet
    write_json(files.config, config)
    # After the config: a reader that finds the start also finds the config.
    with JsonlFile(files.starts) as starts:
        starts.append({"time": time.time(), "pid": os.getpid()})
    return sum(1 for _ in complete_lines(files.starts))


def note_length(run_dir: Path, total_steps: int | None, *, measure: str = "loss", mode: str = "min") -> None:
    """Record the planned steps of a run, its progress metric, and the direction of that."""
    write_json(RunFiles(run_dir).progress, {"total_steps": total_steps, "measure": measure, "mode": mode})


def note_identity(run_dir: Path, identity: Object) -> None:
    """Note what a run is made of: weights, code, packages."""
    write_json(RunFiles(run_dir).identity, identity)


def write_result(run_dir: Path, result: Object, *, hparams: Object) -> None:
    """Note how a run ended."""
    write_json(RunFiles(run_dir).result, {**result, "hparams": hparams, "ts": time.time()})


def load_result(run_dir: Path) -> Object | None:
    """How a run ended, if it has; a damaged file is an error."""
    path = RunFiles(run_dir).result
    return load_object(path) if path.exists() else None


def write_conclusion(folder: Path, *, page: str, content: str) -> None:
    """Put both forms of a conclusion next to the record, each whole or not at all."""
    files = ExperimentFiles(folder)
    write_text(files.conclusion_page, page)
    write_text(files.conclusion, content)  # last: what programs look for


def read_conclusion(folder: Path) -> str | None:
    """The conclusion that was written, as it was written."""
    path = ExperimentFiles(folder).conclusion
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def read_conclusion_page(folder: Path) -> str | None:
    """The page of the conclusion, as it is on disk."""
    path = ExperimentFiles(folder).conclusion_page
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def conclusions_below(root: Path) -> list[tuple[float, str, Object]]:
    """When each experiment below a root was concluded, its folder's name, and the conclusion; damaged ones left out."""
    files = [ExperimentFiles(root / name).conclusion for name in subfolders(root)]
    return [(mtime(file) or 0.0, file.parent.name, found) for file in files if (found := read_object(file)) is not None]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What a run took, as far as it got."""

    config: Object
    result: Object | None
    """How it ended; None where it has not."""
    steps: list[tuple[float, float]]
    """Tokens and seconds of each."""
    scorings: list[tuple[float, float]]
    """Tokens read and written, and seconds, of those after its last step, which shared the machine with no training."""


def latest_run_times(root: Path, most: int, wanted: Callable[[Object], bool]) -> Iterator[RunTimes]:
    """What the latest runs below a root took whose config is `wanted`, the newest first; damaged ones are left out."""
    ended = [(mtime(RunFiles(folder).result) or 0.0, folder) for folder in run_folders(root)]
    begun = [(mtime(RunFiles(folder).config) or 0.0, folder) for folder in find_begun(root)]
    for _, folder in sorted([*ended, *begun], reverse=True)[:most]:
        files = RunFiles(folder)
        result = read_object(files.result) if files.result.exists() else None
        config = part(result, "hparams") if result is not None else read_object(files.config)
        if config and wanted(config):
            yield RunTimes(config, result, *_read_times(files))


def _read_times(files: RunFiles) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    logged = {number(line.get("step")): number(line.get("tokens")) for line in read_lines(files.logs.metrics)}
    steps: list[tuple[float, float]] = []
    for line in read_lines(files.logs.timing):
        tokens = logged.get(number(line.get("step")))
        # What the engine computed, where it says so: a step may have waited for a scoring that continued next to it.
        taken = number(line.get(COMPUTE_S)) or number(line.get("time/step_s")) or 0.0
        seconds = taken + (number(line.get("time/build_s")) or 0.0)
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


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
