"""Sealed copies of task files, to detect and restore changed ones.

A file of benchmark or validation tasks is sealed at its first use: `.evsys/sealed/` gets a copy named by its hash, and
`.evsys/sealed.jsonl` a line with its path. Every later command that scores, gates or checks compares the file with its
seal, until the file is restored or its new content is accepted.

    seal_files([Path("data/benchmark/routing")])
    for sealed_file in find_changed():
        print(sealed_file)
    restore_files(find_changed())
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...files import atomic_write
from ...log import get_logger
from ...paths import project_root, workspace_dir
from ..layout import SEALED, SEALS, lock_beside
from ..lock import exclusive

_MOST_FILES = 5000
"""A folder with more files is not sealed."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """Path and hash of a file at its first use."""

    path: str
    """Relative to the project root if the file is below it."""
    sha256: str

    @property
    def file(self) -> Path:
        return project_root() / self.path

    @property
    def copy(self) -> Path:
        return workspace_dir() / SEALED / self.sha256

    def __str__(self) -> str:
        how = "has changed since it was" if self.file.exists() else "is gone; it was"
        return (
            f"{self.path}: this task file {how} first used. `evsys benchmark restore` brings it back; "
            "`evsys benchmark restore --keep` accepts its new content"
        )


def seal_files(paths: Iterable[Path], *, again: bool = False) -> None:
    """Seal files, and all files of folders, at their first use; `again` seals their present content."""
    try:
        known = {} if again else _read_seals()
        fresh = [file for path in paths for file in _files_below(path) if _name(file) not in known]
        if fresh:
            folder = workspace_dir()
            folder.mkdir(parents=True, exist_ok=True)
            with exclusive(lock_beside(folder / SEALS), "the list of sealed files"):
                _append([_copy(file) for file in dict.fromkeys(fresh)])
    except OSError as error:  # sealing is no reason to stop an experiment
        get_logger(__name__).warning("task files could not be sealed: %s", error)


def find_changed() -> list[SealedFile]:
    """The sealed files that were removed or changed."""
    return [sealed for sealed in _read_seals().values() if _hash(sealed.file) != sealed.sha256]


def restore_files(changed: Iterable[SealedFile]) -> list[SealedFile]:
    """Restore the sealed content; returns the files whose copy is missing or damaged."""
    lost: list[SealedFile] = []
    for sealed in changed:
        content = sealed.copy.read_bytes() if sealed.copy.is_file() else b""
        if hashlib.sha256(content).hexdigest() != sealed.sha256:
            lost.append(sealed)
            continue
        with atomic_write(sealed.file) as file:
            file.write(content)
    return lost


def _copy(file: Path) -> SealedFile:
    content = file.read_bytes()
    sealed = SealedFile(_name(file), hashlib.sha256(content).hexdigest())
    if _hash(sealed.copy) != sealed.sha256:
        with atomic_write(sealed.copy) as copy:
            copy.write(content)
        sealed.copy.chmod(0o444)
    return sealed


def _append(sealed: list[SealedFile]) -> None:
    lines = [json.dumps({"path": entry.path, "sha256": entry.sha256}) for entry in sealed]
    with (workspace_dir() / SEALS).open("a", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))


def _read_seals() -> dict[str, SealedFile]:
    """Path -> sealed file; the last line of a path counts."""
    try:
        text = (workspace_dir() / SEALS).read_text(encoding="utf-8")
    except OSError:
        return {}
    seals: dict[str, SealedFile] = {}
    for line in text.splitlines():
        try:
            sealed = SealedFile(**json.loads(line))
        except (ValueError, TypeError):
            continue  # half a line of a killed process
        seals[sealed.path] = sealed
    return seals


def _files_below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield from [path] if path.is_file() else []
        return
    files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    yield from files if len(files) <= _MOST_FILES else []


def _name(file: Path) -> str:
    file, root = file.resolve(), project_root()
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix()


def _hash(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None
