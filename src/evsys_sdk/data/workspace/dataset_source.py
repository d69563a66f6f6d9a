"""Where the workspace pulls datasets and benchmarks from: the contract, and how a name becomes one entry.

A source says what it has (`list`, cheap), identifies one entry exactly (`describe`, which may read or ask), and hands
out its rows. It never writes to the workspace. `local_folder.py` is the source of a project's own `data/` folder.
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
    """Nothing has this name, version, split or id."""


class Named(Protocol):
    """What a reference can choose between."""

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
    """Something a source has, as far as it can say without reading it."""

    kind: Kind
    name: str
    version: int
    split: str
    location: str
    """Where it is: a path (below the project where possible) or an address."""


@dataclass(frozen=True, slots=True)
class SourceEntry(Available):
    """Something a source has, identified down to its bytes."""

    id: str
    sha256: str | None = None
    """Hash of the rows as JSONL; None when the source cannot know it before sending them."""
    rows: int | None = None
    bytes: int | None = None
    format: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class DatasetSource(Protocol):
    """A place that has datasets and benchmarks."""

    name: str
    """Recorded as the origin in the lineage of what is pulled from here."""

    def list(self, kind: Kind) -> Sequence[Available]:
        """Everything it has of a kind; empty when it is not there at all."""
        ...

    def describe(self, kind: Kind, *, id: str | None = None, name: str | None = None) -> SourceEntry:
        """The entry with this id, or that a reference (`sft@v2:test`) means; UnknownDataError if there is none."""
        ...

    def rows(self, entry: SourceEntry) -> Iterator[bytes | Row]:
        """Its rows in order, as JSONL lines or as objects."""
        ...


def default_split(kind: Kind) -> str:
    """The split of rows that say nothing else about it."""
    return _DEFAULT_SPLITS[kind]


def reference_to(item: Named) -> Reference:
    """The full reference that means exactly this item."""
    return Reference(item.name, item.version, item.split)


def choose[T: Named](kind: Kind, wanted: Reference, items: Sequence[T]) -> T:
    """The one item `wanted` means: the latest version unless it names one, and never a guess between two."""
    named = [item for item in items if item.name == wanted.name]
    if not named:
        raise UnknownDataError(_explain_unknown_name(kind, wanted.name, {item.name for item in items}))
    # The folder that a benchmark lies in is its split, so there a bare name may mean either.
    split = wanted.split or (default_split(kind) if kind == "dataset" else None)
    if split is None and len({item.split for item in named}) > 1:
        raise WorkspaceError(
            f"{kind} '{wanted.name}' is ambiguous: {_places(named)}. Rename one of them, or name the one you want "
            "with its id or path."
        )
    # Of the name and not of the split: a newest version without it is an error, and not a reason to use an older one.
    version = max(item.version for item in named) if wanted.version is None else wanted.version
    versions = sorted({item.version for item in named})
    if version not in versions:
        known = ", ".join(f"v{each}" for each in versions)
        raise UnknownDataError(f"{kind} '{wanted.name}' has no version v{version}. It has: {known}.")
    at_version = [item for item in named if item.version == version]
    fitting = [item for item in at_version if split in (None, item.split)]
    if not fitting:
        others = sorted({item.split for item in at_version})
        raise UnknownDataError(
            f"{kind} '{wanted.name}' v{version} has no split '{split}'. It has: {', '.join(others)}. "
            f"Write '{wanted.name}@v{version}:{others[0]}', or add the split."
        )
    if len(fitting) > 1:
        raise WorkspaceError(
            f"{kind} '{reference_to(fitting[0])}' is there more than once: {_places(fitting)}. Give one of them "
            "another version, or name the one you want with its id or path."
        )
    return fitting[0]


def unknown_id(kind: Kind, id: str, known: Sequence[str]) -> UnknownDataError:
    """The error for an id that nothing has."""
    guess = closest(id, known)
    return UnknownDataError(
        f"{kind} id '{id}' is neither in the workspace nor in its source"
        + (f"; did you mean '{guess}'?" if guess else ".")
        + f" An id stands for exact bytes: `evsys {kind} list` shows the ids that exist here."
    )


def _explain_unknown_name(kind: Kind, name: str, known: set[str]) -> str:
    guess = closest(name, known)
    return (
        f"{kind} '{name}' is not known"
        + (f"; did you mean '{guess}'?" if guess else ".")
        + f" Known: {', '.join(sorted(known)) or 'none'}."
        + f" Add one with: evsys {kind} add PATH --name {name}"
    )


def _places(items: Sequence[Named]) -> str:
    return ", ".join(f"{reference_to(item)} in {item.location}" for item in items)
