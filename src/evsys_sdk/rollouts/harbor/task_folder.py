"""Task folders in Harbor's format: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh`.

    tasks = load_harbor_tasks("benchmarks/terminal")      # one folder, or a folder of them

Each becomes a `HarborTask` with its folder, in which engine `harbor` runs it; the folder's tests give the reward.
Folders are untrusted, so files outside a folder are never read through it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from ...data.shapes import is_list, is_object
from ...data.types import HarborTask, InProcessVerifier
from ...errors import DataError, show
from ..environment import Environment
from .native import NativeEnvironment

TESTS = "harbor_tests"
"""Verifier of tasks whose folder has tests."""

_CANARY = re.compile(r"(?:\s*(?:<!--[^\n]*canary[^\n]*-->|#[^\n]*canary[^\n]*)[ \t]*(?:\n|$))+", re.IGNORECASE)
_LONGEST_TEXT = 1024 * 1024
_DEEPEST = 32
_BUILDS_A_CONTAINER = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_STUB_TEST = "#!/bin/sh\n# This row is verified in Python; its folder exists because a trial needs one.\nexit 1\n"


def is_task_folder(path: Path) -> bool:
    """Whether a folder is one task."""
    return (path / "task.toml").is_file()


def holds_task_folders(path: Path) -> bool:
    """Whether `load_harbor_tasks` finds a task there."""
    return path.is_dir() and (is_task_folder(path) or any(is_task_folder(folder) for folder in path.iterdir()))


def load_harbor_tasks(path: str | Path) -> list[HarborTask]:
    """The task in a folder, or the tasks in its subfolders, sorted by name."""
    root = Path(path).expanduser().resolve()
    folders = [root] if is_task_folder(root) else sorted(p.parent for p in root.glob("*/task.toml"))
    for folder in folders:
        _refuse_link_out_of(root, folder)
    if not folders:
        what = "A task is a folder with task.toml, instruction.md and tests/test.sh."
        raise DataError(f"{path}: no task in Harbor's format. {what}")
    tasks = [_load(folder) for folder in folders]
    by_id: dict[str, HarborTask] = {}
    for task in tasks:
        other = by_id.setdefault(task.task_id, task)
        if other is not task:
            places = f"{other.metadata['task_dir']} and {task.metadata['task_dir']}"
            raise DataError(f"{places}: two tasks have the name {task.task_id!r}. Change [task].name of one.")
    return tasks


def _load(folder: Path) -> HarborTask:
    check_links(folder)
    config = _read_toml(folder / "task.toml")
    if config.get("steps"):
        raise DataError(f"{folder / 'task.toml'}: tasks in [[steps]] are not supported. Write one instruction.md.")
    for needed in ("instruction.md", "tests"):
        if not (folder / needed).exists():
            raise DataError(f"{folder}: has no {needed}, which a task in Harbor's format needs. Add it.")
    instruction = _CANARY.sub("", _read_text(folder / "instruction.md"), count=1).strip()
    name = str(_table(config, "task", folder).get("name", folder.name))
    metadata = {**_table(config, "metadata", folder), "task_dir": str(folder)}
    return HarborTask(name, instruction, InProcessVerifier(TESTS), metadata)


def check_links(folder: Path) -> None:
    """Refuse a folder with a symbolic link to a place outside, whose content a model would read."""
    for parent, folders, files in folder.walk():
        for name in (*folders, *files):
            _refuse_link_out_of(folder, parent / name)


def _refuse_link_out_of(folder: Path, path: Path) -> None:
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path}: is a symbolic link to a place outside {folder}. Replace it by a copy of its target.")


def _table(config: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    value = config.get(name, {})
    if not isinstance(value, dict):
        raise DataError(f"{folder / 'task.toml'}: '{name}' is {show(value)}, not a table. Write [{name}].")
    return cast("dict[str, Any]", value)


def _read_text(path: Path) -> str:
    """The text of a regular file of limited size."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: is not a regular file. Replace it by one.")
        if status.st_size > _LONGEST_TEXT:
            raise DataError(f"{path}: has {status.st_size} bytes; the limit is {_LONGEST_TEXT}. Shorten it.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}. Correct the file.") from error


def _read_toml(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        config = tomllib.loads(text)
        too_deep = _depth(config) > _DEEPEST
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: cannot be read: {error}. Correct the file.") from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number with thousands of digits
        raise DataError(f"{path}: cannot be read: {type(error).__name__}. Write it flatter and shorter.") from None
    if too_deep:
        raise DataError(f"{path}: cannot be read: it is nested more than {_DEEPEST} levels deep. Write it flatter.")
    return config


def _depth(value: Any) -> int:
    """Nesting depth of tables and lists."""
    inner: Any = list(value.values()) if is_object(value) else value if is_list(value) else ()
    return 1 + max(map(_depth, inner), default=0)


def container_of(folder: Path) -> str | None:
    """The image or build file of a task's environment; None if it only needs files."""
    image: Any = _table(_read_toml(folder / "task.toml"), "environment", folder).get("docker_image")
    files = (name for name in _BUILDS_A_CONTAINER if (folder / "environment" / name).exists())
    return str(image) if image else next(files, None)


def refuse_container(task: HarborTask, environment: Environment) -> None:
    """Refuse a task that needs a container in an environment that cannot build one."""
    folder = folder_of(task)
    if folder is None or isinstance(environment, NativeEnvironment):
        return
    if getattr(getattr(environment, "cfg", None), "rootfs", None) is None and (container := container_of(folder)):
        raise DataError(
            f"{folder}: needs a container ({container}), which environment {environment.name!r} cannot build. "
            "Unpack its image and set environment.params.rootfs, or use harbor:docker."
        )


def refuse_containers(tasks: Iterable[HarborTask], make_environment: Callable[[], Environment]) -> None:
    """Apply `refuse_container` to all tasks with a folder."""
    for task in tasks:
        if "task_dir" in task.metadata:
            refuse_container(task, make_environment())


def folder_of(task: HarborTask) -> Path | None:
    """The folder of a task; None without one."""
    path: Any = task.metadata.get("task_dir")
    if path is None:
        return None
    folder = Path(str(path))
    if not is_task_folder(folder):
        hint = "Load the tasks again with load_harbor_tasks, on this machine."
        raise DataError(f"task {task.task_id!r}: its folder {folder} has no task.toml. {hint}")
    check_links(folder)
    return folder


def agent_limit(folder: Path | None) -> float:
    """The folder's time limit for the agent in seconds."""
    seconds: Any = _table(_read_toml(folder / "task.toml"), "agent", folder).get("timeout_sec") if folder else None
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise DataError(f"{folder}/task.toml: agent.timeout_sec is {show(seconds)}. Write a number of seconds above 0.")
    return math.inf if seconds is None else float(seconds)


def has_own_tests(task: HarborTask) -> bool:
    """Whether the tests in its folder score a task, rather than a registered verifier."""
    return isinstance(task.verifier, InProcessVerifier) and task.verifier.fn_name == TESTS


def write_stub(root: Path, environment: Mapping[str, str | None]) -> Path:
    """A folder for rows without one; rows with the same settings share it, and agents get the row's text."""
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
