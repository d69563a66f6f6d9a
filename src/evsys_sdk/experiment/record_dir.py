"""The folder of an experiment: never overwritten, numbered when it is repeated, taken up again until it is finished.

<output_dir>/<experiment>/            first attempt; <experiment>.2, .3 ... later ones
    config.json                       the resolved config
    journal.jsonl                     everything that happened, in order
    conclusion.json  conclusion.md    what follows from it
    <run>/                            one folder per arm
        config.json  starts.jsonl  checkpoints.jsonl  scores.jsonl  run_result.json  logs/
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig
from ..errors import ConfigError, DataError, Problem
from ..files import write_json
from ..protocols import RunResult
from ..redact import redact
from .journal import is_finished
from .locks import lock_owner
from .result_json import result_from_dict, result_to_dict

CONFIG_FILE = "config.json"
RESULT_FILE = "run_result.json"
STARTS_FILE = "starts.jsonl"
PROGRESS_FILE = "progress.json"
"""How many steps the run is going to take, for whoever watches from outside."""
CONSOLE_FILE = "console.log"
"""What an experiment in the background prints."""
RESERVED_NAMES: tuple[str, ...] = (
    CONFIG_FILE,
    "journal.jsonl",
    "conclusion.json",
    "conclusion.md",
    CONSOLE_FILE,
    "spend.jsonl",
)
"""Files that stand beside the folders of the arms."""
_MAY_CHANGE = ("budget", "max_concurrent_arms", "launcher", "arm_timeout_s", "arm_retries", "description", "callbacks")
"""Fields that say how an experiment is run rather than what it is; changing them does not make it another one."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""How a file system says that there is something at a path already."""


@dataclass(frozen=True, slots=True)
class ExperimentDir:
    """One attempt at an experiment, on disk."""

    path: Path
    resumed: bool = False
    """Whether it was there before and is taken up again."""

    def run_dir(self, arm: str) -> Path:
        return self.path / arm


def open_experiment_dir(config: ExperimentConfig, *, resume: bool = False, fresh: bool = False) -> ExperimentDir:
    """The latest folder where it is to be taken up again, else a new numbered one.

    With `resume` the latest must belong to the same config. Without it and without `fresh`, one that does and was not
    finished is taken up, so that the same command after a crash goes on.
    """
    base = Path(config.output_dir) / config.name
    resolved = redact(config.model_dump(mode="json"))
    latest = _latest(base)
    if latest is not None and not fresh:
        changed = _changes(latest, resolved)
        if resume and changed:
            hint = "Change it back to resume, or run without --resume to start a new attempt."
            message = f"the config differs from the one in {latest} in: {', '.join(changed)}"
            raise ConfigError(Problem(message, hint=hint))
        taken = lock_owner(latest) is not None  # whoever starts it twice at the same time wants it twice
        if resume or not (changed or taken or is_finished(latest)):
            write_json(latest / CONFIG_FILE, resolved)  # how it is run may have changed
            return ExperimentDir(latest, resumed=True)
    return ExperimentDir(_create(base, resolved))


def begin_run(run_dir: Path, config: dict[str, Any]) -> int:
    """Note that a run starts, and return how often it has by now."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / RESULT_FILE).unlink(missing_ok=True)  # what goes on has no result yet
    write_json(run_dir / CONFIG_FILE, redact(config))
    starts = run_dir / STARTS_FILE
    with starts.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), "pid": os.getpid()}) + "\n")
    return len(starts.read_bytes().splitlines())


def write_result(run_dir: Path, result: RunResult, *, hparams: dict[str, Any]) -> None:
    """Note how a run ended."""
    write_json(run_dir / RESULT_FILE, {**result_to_dict(result), "hparams": redact(hparams), "ts": time.time()})


def read_result(run_dir: Path) -> RunResult | None:
    """The result a run ended with, if it has."""
    path = run_dir / RESULT_FILE
    try:
        return result_from_dict(_read_json(path)) if path.exists() else None
    except (KeyError, TypeError):
        raise DataError(f"{path}: this is not the result of a run. Remove it to run the arm again.") from None


def _attempts(base: Path) -> dict[int, Path]:
    """Attempts on disk by number; only a folder with its config written counts as one."""
    found = {1: base} if (base / CONFIG_FILE).exists() else {}
    for path in base.parent.glob(f"{_escape(base.name)}.*"):
        suffix = path.name.removeprefix(f"{base.name}.")
        if suffix.isdecimal() and (path / CONFIG_FILE).exists():
            found[int(suffix)] = path
    return found


def _latest(base: Path) -> Path | None:
    foreign = base.exists() and not (base.is_dir() and not any(base.iterdir()))
    attempts = _attempts(base)  # after that look: another experiment may be making the folder at this moment
    if foreign and not attempts:
        hint = "Choose another output_dir or name, or move that folder away."
        raise ConfigError(Problem(f"the folder {base} exists and is not the record of an experiment", hint=hint))
    return attempts[max(attempts)] if attempts else None


def _create(base: Path, resolved: dict[str, Any]) -> Path:
    """Make the next attempt's folder, complete with its config from the first moment it is there."""
    base.parent.mkdir(parents=True, exist_ok=True)
    staged = base.with_name(f".{base.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    write_json(staged / CONFIG_FILE, resolved)
    number = max(_attempts(base), default=0)
    while True:
        number += 1
        path = base if number == 1 else base.with_name(f"{base.name}.{number}")
        try:
            staged.rename(path)  # replaces an empty folder, but nothing else
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return path


def _changes(path: Path, resolved: dict[str, Any]) -> list[str]:
    """The fields in which a recorded experiment is another one than this."""
    recorded = _read_json(path / CONFIG_FILE)
    different = {key for key in {*recorded, *resolved} if recorded.get(key) != resolved.get(key)}
    return sorted(different.difference(_MAY_CHANGE))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: this file is damaged ({error}). Move it away, or start a new attempt.") from None


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
