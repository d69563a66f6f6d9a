"""Sources of datasets and benchmarks: the contract, and the resolution of names.

A source lists its entries (`list`, cheap), identifies one entry exactly (`describe`, which may read it), and returns
its rows. It never writes to the workspace. `local_folder.py` is the source of a project's `data/` folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import WorkspaceError, closest
from ...protocols import Row
from .reference import Kind, Reference

_DEFAULT_SPLITS: dict[Kind, str] = {"dataset": "train", "benchmark": "test"}


class UnknownDataError(WorkspaceError):
    """No data has this name, version, split or id."""


class Named(Protocol):
    """Fields for resolving a reference."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def split(self) -> str: ...
    @property
    def location(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Available:
    """An entry of a source, as known without reading it."""

    kind: Kind
    name: str
    version: int
    split: str
    location: str
    """A path (below the project if possible) or an address."""


@dataclass(frozen=True, slots=True)
class SourceEntry(Available):
    """An entry of a source, identified by its content."""

    id: str
    sha256: str | None = None
    """Hash of the rows as JSONL; None if the source cannot know it in advance."""
    rows: int | None = None
    bytes: int | None = None
    format: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class DatasetSource(Protocol):
    """A source of datasets and benchmarks."""

    name: str
    """The origin in the lineage of its rows."""

    def list(self, kind: Kind) -> Sequence[Available]:
        """All entries of a kind; empty if the source does not exist."""
        ...

    def describe(self, kind: Kind, *, id: str | None = None, name: str | None = None) -> SourceEntry:
        """The entry of an id or a reference (`sft@v2:test`); raises UnknownDataError."""
        ...

    def rows(self, entry: SourceEntry) -> Iterator[bytes | Row]:
        """The rows in order, as JSONL lines or objects."""
        ...


def default_split(kind: Kind) -> str:
    """The default split."""
    return _DEFAULT_SPLITS[kind]


def reference_to(item: Named) -> Reference:
    """The full reference of this item."""
    return Reference(item.name, item.version, item.split)


def choose[T: Named](kind: Kind, reference: Reference, items: Sequence[T]) -> T:
    """The item of a reference: the latest version unless it names one; ambiguity is an error."""
    candidates = [item for item in items if item.name == reference.name]
    if not candidates:
        raise UnknownDataError(_explain_unknown_name(kind, reference.name, {item.name for item in items}))
    # A benchmark's folder is its split, so a bare name may be ambiguous.
    split = reference.split or (default_split(kind) if kind == "dataset" else None)
    if split is None and len({item.split for item in candidates}) > 1:
        raise WorkspaceError(
            f"{kind} '{reference.name}' is ambiguous: {_places(candidates)}. Rename one of them, or name the one "
            "you want with its id or path."
        )
    # The latest version of the name: if it lacks the split, that is an error; do not fall back to an older one.
    version = max(item.version for item in candidates) if reference.version is None else reference.version
    versions = sorted({item.version for item in candidates})
    if version not in versions:
        existing = ", ".join(f"v{each}" for each in versions)
        raise UnknownDataError(f"{kind} '{reference.name}' has no version v{version}. It has: {existing}.")
    at_version = [item for item in candidates if item.version == version]
    fitting = [item for item in at_version if split in (None, item.split)]
    if not fitting:
        others = sorted({item.split for item in at_version})
        raise UnknownDataError(
            f"{kind} '{reference.name}' v{version} has no split '{split}'. It has: {', '.join(others)}. "
            f"Write '{reference.name}@v{version}:{others[0]}', or add the split."
        )
    if len(fitting) > 1:
        raise WorkspaceError(
            f"{kind} '{reference_to(fitting[0])}' exists more than once: {_places(fitting)}. Give one of them "
            "another version, or name the one you want with its id or path."
        )
    return fitting[0]


def unknown_id(kind: Kind, id: str, ids: Sequence[str]) -> UnknownDataError:
    """The error for an unknown id."""
    guess = closest(id, ids)
    return UnknownDataError(
        f"{kind} id '{id}' is neither in the workspace nor in its source"
        + (f"; did you mean '{guess}'?" if guess else ".")
        + f" An id stands for exact bytes: `evsys {kind} list` shows the ids that exist here."
    )


def _explain_unknown_name(kind: Kind, name: str, names: set[str]) -> str:
    guess = closest(name, names)
    return (
        f"{kind} '{name}' is unknown"
        + (f"; did you mean '{guess}'?" if guess else ".")
        + f" Known: {', '.join(sorted(names)) or 'none'}."
        + f" Add one with: evsys {kind} add PATH --name {name}"
    )


def _places(items: Sequence[Named]) -> str:
    return ", ".join(f"{reference_to(item)} in {item.location}" for item in items)
