"""Task folders in Harbor's format: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`.

    tasks = load_harbor_tasks("benchmarks/terminal")      # one folder, or a folder of them

Each becomes a `HarborTask` that names its folder; engine `harbor` runs it there, and its own tests give the reward.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.types import HarborTask, InProcessVerifier
from ...errors import DataError

TESTS = "harbor_tests"
"""Verifier of tasks whose folder has tests that write the reward."""

_CANARY = re.compile(r"(?:\s*(?:<!--[^\n]*canary[^\n]*-->|#[^\n]*canary[^\n]*)[ \t]*(?:\n|$))+", re.IGNORECASE)
_STUB_TEST = "#!/bin/sh\n# This row is verified in Python; its folder exists because a trial needs one.\nexit 1\n"


def is_task_folder(path: Path) -> bool:
    """Whether a folder is one task."""
    return (path / "task.toml").is_file()


def holds_task_folders(path: Path) -> bool:
    """Whether `load_harbor_tasks` would find a task there."""
    return path.is_dir() and (is_task_folder(path) or any(is_task_folder(folder) for folder in path.iterdir()))


def load_harbor_tasks(path: str | Path) -> list[HarborTask]:
    """The task in a folder, or the tasks in the folders below it, in the order of their names."""
    root = Path(path).expanduser().resolve()
    folders = [root] if is_task_folder(root) else sorted(p.parent for p in root.glob("*/task.toml"))
    if not folders:
        what = "A task is a folder with task.toml, instruction.md and tests/test.sh."
        raise DataError(f"{path}: holds no task in Harbor's format. {what}")
    tasks = [_load(folder) for folder in folders]
    by_id: dict[str, HarborTask] = {}
    for task in tasks:
        other = by_id.setdefault(task.task_id, task)
        if other is not task:
            places = f"{other.metadata['task_dir']} and {task.metadata['task_dir']}"
            raise DataError(f"{places}: two tasks are called {task.task_id!r}. Give one of them another [task].name.")
    return tasks


def _load(folder: Path) -> HarborTask:
    config = _read_toml(folder / "task.toml")
    if config.get("steps"):
        raise DataError(f"{folder / 'task.toml'}: tasks in [[steps]] are not supported. Write one instruction.md.")
    for needed in ("instruction.md", "tests"):
        if not (folder / needed).exists():
            raise DataError(f"{folder}: has no {needed}, which a task in Harbor's format needs. Add it.")
    instruction = _CANARY.sub("", (folder / "instruction.md").read_text(encoding="utf-8"), count=1).strip()
    name = str(config.get("task", {}).get("name", folder.name))
    metadata = {**config.get("metadata", {}), "task_dir": str(folder)}
    return HarborTask(name, instruction, InProcessVerifier(TESTS), metadata)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Correct the file.") from error


def folder_of(task: HarborTask) -> Path | None:
    """The folder that a task names, if it names one."""
    named: Any = task.metadata.get("task_dir")
    if named is None:
        return None
    folder = Path(str(named))
    if not is_task_folder(folder):
        hint = "Load the tasks again with load_harbor_tasks, on this machine."
        raise DataError(f"task {task.task_id!r}: its folder {folder} has no task.toml. {hint}")
    return folder


def agent_limit(folder: Path | None) -> float:
    """How many seconds a folder gives to the agent."""
    named: Any = _read_toml(folder / "task.toml").get("agent", {}).get("timeout_sec") if folder else None
    return math.inf if named is None else float(named)


def has_own_tests(task: HarborTask) -> bool:
    """Whether the tests in its folder decide over a task, rather than a registered verifier."""
    return isinstance(task.verifier, InProcessVerifier) and task.verifier.fn_name == TESTS


def write_stub(root: Path, environment: Mapping[str, str | None]) -> Path:
    """A folder for rows that have none; rows with the same needs share it, and their agents are told the row's text."""
    settings = {name: value for name, value in environment.items() if value is not None}
    lines = ['schema_version = "1.4"', "[environment]", *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
    text = "\n".join(lines) + "\n"
    folder = root / "tasks" / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    if not (folder / "task.toml").exists():
        (folder / "environment").mkdir(parents=True, exist_ok=True)
        (folder / "tests").mkdir(exist_ok=True)
        (folder / "tests" / "test.sh").write_text(_STUB_TEST, encoding="utf-8")
        (folder / "instruction.md").write_text("The row has the instruction.\n", encoding="utf-8")
        (folder / "task.toml").write_text(text, encoding="utf-8")
    return folder
