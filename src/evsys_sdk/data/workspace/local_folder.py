"""The source for a project's `data/` folder.

    data/datasets/<name>/v<N>/{train,test,...}.jsonl      each file is one split
    data/benchmark/<name>/tasks.jsonl                     role `test`
    data/validation/<name>/tasks.jsonl                    role `val`

Each folder may have a `metadata.yaml`. Datasets without `v<N>` folders, benchmarks with them, and plain `<name>.jsonl`
files are accepted too; without a `v<N>` folder, the version comes from the metadata, or is 1.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ...errors import DataError, EvsysError, WorkspaceError, show
from ...log import get_logger
from ...record.jsonable import dump_line
from ..bad_rows import BadRows
from ..jsonl import cannot_read
from ..row_files import KINDS, kind_of, read_row_file
from ..rows import detect_format
from .dataset_source import Available, SourceEntry, choose, default_split, unknown_id
from .reference import Kind, Reference, check_name, content_id, id_prefix, slug

_PLACES: dict[Kind, tuple[tuple[str, str], ...]] = {
    "dataset": (("datasets", "train"),),
    "benchmark": (("benchmark", "test"), ("validation", "val")),
}
"""Kind -> folders below `data/`, each with the default split of its files."""
_TASKS = "tasks.jsonl"
_METADATA = "metadata.yaml"
_VERSION_FOLDER = re.compile(r"v(0|[1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class LocalFile(Available):
    """One file of rows, and the place of its metadata."""

    path: Path
    metadata_path: Path | None = None
    is_outside_layout: bool = False


class Content(NamedTuple):
    """Statistics of a file of rows."""

    sha256: str
    bytes: int
    rows: int


class LocalFolder:
    """Datasets and benchmarks in a project's `data/` folder."""

    name = "project"

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, kind: Kind) -> Sequence[LocalFile]:
        """Every file of rows in the layout; unusable ones are skipped and logged."""
        return self._files(kind)

    def describe(self, kind: Kind, *, id: str | None = None, name: str | None = None) -> SourceEntry:
        if name is not None:
            reference = Reference.parse(name)
            files = self._files(kind, reference.name) or self._files(kind)  # all of them, to name the closest
            return identify(choose(kind, reference, files))
        files = self._files(kind)
        requested = id or ""
        # An id starts with name, version and split, so only matching files are read.
        candidates = [file for file in files if requested.startswith(id_prefix(file.name, file.version, file.split))]
        entries = [identify(file) for file in candidates]
        for entry in entries:
            if entry.id == requested:
                return entry
        raise unknown_id(kind, requested, [entry.id for entry in entries])

    def rows(self, entry: SourceEntry) -> Iterator[bytes]:
        return read_lines(self.root / entry.location)

    def at(self, kind: Kind, path: Path, split: str | None = None) -> LocalFile:
        """The file of rows at `path`, a file or a folder in the layout, anywhere."""
        usual = default_split(kind)
        if path.is_dir():
            files = list(_bundle(kind, path, slug(path.absolute().name), usual, self.root))
            if not files:
                needs = _TASKS if kind == "benchmark" else f"{usual}.jsonl"
                raise WorkspaceError(
                    f"{path}: this folder has no {needs}. Name a JSONL file, or a folder that has one."
                )
            chosen = choose(kind, Reference(files[0].name, split=split), files)
        else:
            name = slug(Path(path.name.removesuffix(".gz")).stem)
            chosen = LocalFile(kind, name, 1, split or usual, _location(path, self.root), path)
        # The same file has the same id by path and by name.
        in_layout = [file for file in self.list(kind) if file.path.resolve() == chosen.path.resolve()]
        if in_layout and split in (None, in_layout[0].split):
            return in_layout[0]
        return replace(chosen, is_outside_layout=True)

    def _files(self, kind: Kind, name: str | None = None) -> Sequence[LocalFile]:
        files: list[LocalFile] = []
        for place, split in _PLACES[kind]:
            for path in _entries(self.root / "data" / place):
                # Skip other names without reading their metadata.
                if name is not None and name not in (path.name, path.stem):
                    continue
                try:
                    files += list(_find_named_files(kind, path, split, self.root))
                except EvsysError as error:  # one bad folder must not hide the others
                    get_logger(__name__).warning("%s is skipped. %s", path, error)
        return files


def identify(file: LocalFile) -> SourceEntry:
    """Identify the exact content of a file by reading it."""
    sha256, size, count = read_content(file.path)
    return SourceEntry(
        *(file.kind, file.name, file.version, file.split, file.location),
        id=content_id(file.kind, name=file.name, version=file.version, split=file.split, sha256=sha256),
        sha256=sha256,
        rows=count,
        bytes=size,
        format=_first_format(file.path),
        metadata=read_metadata(file.metadata_path),
    )


def read_content(path: Path) -> Content:
    """Statistics of a file of rows."""
    digest, size, count = hashlib.sha256(), 0, 0
    for line in read_lines(path):
        digest.update(line)
        size += len(line)
        count += bool(line.strip())
    return Content(digest.hexdigest(), size, count)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a JSONL file, decompressed and without byte-order mark; other formats as lines of JSON."""
    if path.is_dir() or kind_of(path) not in (None, "jsonl"):
        bad = BadRows()
        for row in bad.watch(read_row_file(path, on_error=bad.note_unread)):
            yield dump_line(row, f"{path}: row {bad.number}")
        bad.finish()
        return
    number = 0
    try:
        with cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as file:
            for line in file:
                number += 1
                # The byte-order mark does not count, so that equal content has equal ids.
                yield line if number > 1 else line.removeprefix(codecs.BOM_UTF8)
    # Three kinds of damage: not gzip, truncated, or corrupt content.
    except (OSError, EOFError, zlib.error) as error:
        raise cannot_read(path, error, after_line=number) from error


def _find_named_files(kind: Kind, path: Path, split: str, root: Path) -> Iterator[LocalFile]:
    is_bundle = path.is_dir()
    if not is_bundle and path.suffix not in KINDS:
        return
    name = check_name(path.name if is_bundle else path.stem)
    if is_bundle:
        yield from _bundle(kind, path, name, split, root)
    else:
        yield LocalFile(kind, name, 1, split, _location(path, root), path)


def _bundle(kind: Kind, folder: Path, name: str, split: str, root: Path) -> Iterator[LocalFile]:
    """The files of one named folder: directly in it, and in its version folders."""
    numbered = [(int(match[1]), path) for path in _entries(folder) if (match := _VERSION_FOLDER.fullmatch(path.name))]
    for number, place in [(None, folder), *sorted(numbered)]:
        metadata_path = place / _METADATA
        for path in _row_files(kind, place):
            version = _read_version(metadata_path) if number is None else number
            file_split = split if kind == "benchmark" else path.stem
            yield LocalFile(kind, name, version, file_split, _location(path, root), path, metadata_path)


def _row_files(kind: Kind, folder: Path) -> Iterator[Path]:
    if kind == "benchmark":
        yield from (path for path in [folder / _TASKS] if path.is_file())
        return
    for path in _entries(folder):
        if path.suffix in KINDS and path.is_file():
            try:
                check_name(path.stem, what="split")
            except WorkspaceError as error:
                get_logger(__name__).warning("%s is skipped. %s", path, error)
            else:
                yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot_read(folder, error) from error


def _read_version(metadata_path: Path) -> int:
    version = read_metadata(metadata_path).get("version", 1)
    text = str(version).removeprefix("v")
    if not text.isdecimal():
        raise WorkspaceError(f"{metadata_path}: version must be a whole number such as 2, not {show(version)}.")
    return int(text)


def read_metadata(path: Path | None) -> dict[str, Any]:
    """The content of a `metadata.yaml`; empty without one."""
    if path is None or not path.is_file():
        return {}
    import yaml  # imported only if the file exists

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise cannot_read(path, error) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkspaceError(f"{path}: this is not YAML: {error}. Correct it, or remove the file.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise WorkspaceError(f"{path}: this must be a mapping of keys to values (got {show(content)}).")
    return json.loads(json.dumps(content, default=str))  # dates become text, as in the manifest


def _first_format(path: Path) -> str | None:
    try:
        return next((detect_format(row) for _, row in read_row_file(path)), None)
    except DataError:
        return None  # pulling it reports the invalid line


def _location(path: Path, root: Path) -> str:
    """A path for the record: relative to the project if possible, so that it is portable."""
    # Resolved too, because the project may be a symbolic link.
    for inner, outer in ((path.absolute(), root), (path.resolve(), root.resolve())):
        if inner.is_relative_to(outer):
            return inner.relative_to(outer).as_posix()
    return str(path.absolute())
