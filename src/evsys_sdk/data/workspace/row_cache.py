"""The files of cached rows of one kind: `<id>.jsonl`, read-only, and `<id>.manifest.json`, written last.

Names and sources are in `workspace.py`. After any failure during a write (a full disk, a killed process, a concurrent
process), an id is absent, recognisably incomplete, or complete and correct.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ...errors import DataError, WorkspaceError
from ...files import atomic_write
from ...log import get_logger
from ...protocols import Row
from ...record.jsonable import dump_line
from ...record.lock import exclusive
from ..jsonl import cannot_read, iter_numbered_rows, read_jsonl
from ..rows import detect_format, parse_rows
from ..types import TargetFormat
from .manifest import SUFFIX, Lineage, Manifest
from .reference import Kind, check_name, content_id, id_prefix

# Write rows into a file of the workspace, and validate them before publishing.

_ROW_PREFIX = "task: row 1: "  # prefix of `parse_rows` errors, replaced by the line


def write_lines(file: IO[bytes], rows: Iterable[bytes | Row], where: str) -> str:
    """Write rows, lines verbatim and objects as JSON; returns the sha256."""
    digest = hashlib.sha256()
    for number, row in enumerate(_shield(rows), 1):
        line = row if isinstance(row, bytes) else dump_line(row, f"{where}:{number}")
        file.write(line)
        digest.update(line)
    # Flush, because `check_rows` opens the file by path.
    file.flush()
    return digest.hexdigest()


def check_rows(path: Path, kind: Kind, where: str) -> Counter[str]:
    """The number of rows per format of a file; an invalid row is refused with its line in `where`."""
    formats: Counter[str] = Counter()
    task_lines: dict[str, int] = {}
    try:
        for number, row in iter_numbered_rows(path):
            if kind == "benchmark":
                _check_task(row, number, task_lines, f"{path}:{number}")
            formats[detect_format(row)] += 1
    except DataError as error:  # replace the temporary path
        raise DataError(str(error).replace(str(path), where, 1)) from None
    if not formats:
        raise DataError(f"{where}: there are no rows. Check the file, or the transforms that make them.")
    return formats


def _check_task(row: Row, number: int, task_lines: dict[str, int], place: str) -> None:
    """Refuse a benchmark task that could not be scored."""
    try:
        task = next(parse_rows([row], TargetFormat.HARBOR_TASK, source="task"))
    except DataError as error:
        raise DataError(f"{place}: {str(error).removeprefix(_ROW_PREFIX)}") from None
    before = task_lines.setdefault(task.task_id, number)
    if before != number:
        raise DataError(
            f"{place}: task_id '{task.task_id}' already occurs in line {before}. Task ids must differ, because the "
            "scores of two models on one task are matched by it. Rename one, or drop the row."
        )


def make_read_only(file: IO[Any]) -> None:
    """Remove the write permission of an open file."""
    path = Path(file.name)
    path.chmod(path.stat().st_mode & ~0o222)


@contextlib.contextmanager
def explain_failures(folder: Path) -> Generator[None]:
    """Convert write errors below `folder` to messages with a remedy."""
    try:
        yield
    except _RowsFailed as failed:
        raise (failed.__cause__ or failed) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "Free some space, or raise the limit," if full else "Make the folder writable"
        raise WorkspaceError(
            f"{folder}: rows could not be written there: {error.strerror or error}. No incomplete file was left. "
            f"{remedy} and run again."
        ) from error


class _RowsFailed(Exception):
    """Carries an OSError of the row source past the handler of write errors."""


def _shield(rows: Iterable[bytes | Row]) -> Iterator[bytes | Row]:
    try:
        yield from rows
    except OSError as error:
        raise _RowsFailed from error


_DATA_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Verified rows in the workspace."""

    manifest: Manifest
    path: Path

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def split(self) -> str:
        return self.manifest.split

    def rows(self) -> Iterator[Row]:
        """The rows, lazily."""
        return read_jsonl(self.path)


@dataclass(frozen=True, slots=True)
class Damage:
    """Why the files of an id are unusable."""

    reason: str
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The manifest's fields known before the rows are written."""

    id: str
    name: str
    version: int
    split: str
    lineage: Lineage
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, manifest: Manifest) -> Draft:
        """The draft for restoring the rows of a manifest."""
        name, version, split = manifest.name, manifest.version, manifest.split
        return cls(manifest.id, name, version, split, manifest.lineage, manifest.metadata)


class RowCache:
    """The folder of one kind."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder = folder
        self.kind: Kind = kind

    def data_path(self, id: str) -> Path:
        return self.folder / f"{check_name(id, what='id')}{_DATA_SUFFIX}"

    def manifest_path(self, id: str) -> Path:
        return self.folder / f"{check_name(id, what='id')}{SUFFIX}"

    def ids(self) -> list[str]:
        """Every id with files here, usable or not."""
        try:
            # Locks and temporary files start with a dot.
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise cannot_read(self.folder, error) from error
        ids = {name.removesuffix(end) for name in names for end in (_DATA_SUFFIX, SUFFIX) if name.endswith(end)}
        return sorted(ids)

    def manifests(self) -> list[Manifest]:
        """The readable manifests; their rows are not checked."""
        manifests: list[Manifest] = []
        for id in self.ids():
            try:
                manifest = Manifest.read(self.manifest_path(id))
            except FileNotFoundError:
                continue  # incomplete, or being written
            except (OSError, ValueError, WorkspaceError):
                manifest = None
            if manifest is None or (manifest.id, manifest.kind) != (id, self.kind):
                get_logger(__name__).warning("%s '%s' is skipped: run `evsys %s verify`.", self.kind, id, self.kind)
            else:
                manifests.append(manifest)
        return manifests

    def inspect(self, id: str, *, thorough: bool = False) -> CachedRows | Damage | None:
        """The state of an id; hashes the rows only when `thorough`, or when size or time has changed."""
        data_path, manifest_path = self.data_path(id), self.manifest_path(id)
        try:
            manifest = Manifest.read(manifest_path)
        except (FileNotFoundError, NotADirectoryError):
            unfinished = Damage("it has no manifest, so the process that wrote it did not finish")
            return unfinished if data_path.exists() else None
        except (OSError, ValueError) as error:
            return Damage(f"its manifest {manifest_path} cannot be read ({error})")
        if (manifest.id, manifest.kind) != (id, self.kind):
            return Damage(f"its manifest belongs to the {manifest.kind} '{manifest.id}'")
        reason = _difference(manifest, data_path, thorough=thorough)
        return Damage(reason, manifest) if reason else CachedRows(manifest, data_path)

    def get_or_store(
        self,
        draft: Draft,
        rows: Callable[[], Iterable[bytes | Row]],
        *,
        where: str,
        sha256: str | None = None,
    ) -> CachedRows:
        """The rows of an id, written first if missing or damaged.

        `where` names their origin in messages; `sha256` is their expected hash, if known.
        """
        state = self.inspect(draft.id)
        if isinstance(state, CachedRows):
            return state
        with explain_failures(self.folder), exclusive(self.folder / f".{draft.id}.lock", draft.id):
            state = self.inspect(draft.id)  # written by another process meanwhile
            if isinstance(state, CachedRows):
                return state
            if state is not None:
                get_logger(__name__).warning("%s '%s' is written again: %s.", self.kind, draft.id, state.reason)
            return self._write(draft, rows(), where, sha256)

    def _write(self, draft: Draft, rows: Iterable[bytes | Row], where: str, sha256: str | None) -> CachedRows:
        data_path, manifest_path = self.data_path(draft.id), self.manifest_path(draft.id)
        self._sweep(draft.id)
        with atomic_write(data_path) as file:
            written = write_lines(file, rows, where)
            if sha256 not in (None, written):
                raise WorkspaceError(f"{where}: it changed while it was being read. Run again when it is complete.")
            formats = check_rows(Path(file.name), self.kind, where)
            make_read_only(file)  # before publishing, so that it is never writable under its name
        status = data_path.stat()
        manifest = Manifest(
            kind=self.kind,
            id=draft.id,
            name=draft.name,
            version=draft.version,
            split=draft.split,
            format=next(iter(formats)) if len(formats) == 1 else "mixed",
            formats=dict(formats),
            rows=formats.total(),
            bytes=status.st_size,
            sha256=written,
            mtime_ns=status.st_mtime_ns,
            lineage=draft.lineage,
            metadata=draft.metadata,
            created=datetime.now(UTC),
            complete=True,
        )
        with atomic_write(manifest_path, "w") as file:
            file.write(manifest.model_dump_json(indent=2) + "\n")
            make_read_only(file)
        return CachedRows(manifest, data_path)

    def _sweep(self, id: str) -> None:
        """Remove leftovers of killed processes, while holding the lock."""
        for suffix in (_DATA_SUFFIX, SUFFIX):
            for leftover in self.folder.glob(f".{id}{suffix}.*.tmp"):
                leftover.unlink(missing_ok=True)


def _difference(manifest: Manifest, path: Path, *, thorough: bool) -> str | None:
    """How the rows on disk differ from the manifest."""
    try:
        status = path.stat()
        if status.st_size != manifest.bytes:
            how = "cut off" if status.st_size < manifest.bytes else "longer than it was"
            return f"it is {how}: {status.st_size} bytes instead of {manifest.bytes}"
        if not thorough and status.st_mtime_ns == manifest.mtime_ns:  # avoid hashing the file at every use
            return None
        sha256, rows = _hash_and_count(path)
    except FileNotFoundError:
        return f"its rows {path} are missing"
    except OSError as error:
        return f"its rows {path} cannot be read ({error})"
    if sha256 != manifest.sha256:
        return f"it was altered: its sha256 is {sha256[:12]}… instead of {manifest.sha256[:12]}…"
    if rows != manifest.rows:
        return f"its manifest was altered: it has {manifest.rows} rows, the file {rows}"
    return _wrong_id(manifest)


def _hash_and_count(path: Path) -> tuple[str, int]:
    digest, rows = hashlib.sha256(), 0
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            rows += bool(line.strip())
    return digest.hexdigest(), rows


def _wrong_id(manifest: Manifest) -> str | None:
    """Whether the id does not match the content, in case rows and manifest were both changed."""
    name, version, split = manifest.name, manifest.version, manifest.split
    if manifest.is_derived or not manifest.id.startswith(id_prefix(name, version, split)):
        return None  # ids of derived rows and of other sources are not content hashes
    right = content_id(manifest.kind, name=name, version=version, split=split, sha256=manifest.sha256)
    return None if right == manifest.id else f"rows and manifest were altered: this content has the id {right}"
