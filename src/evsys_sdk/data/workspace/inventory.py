"""Queries of the workspace: list entries, show one, and verify integrity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...errors import EvsysError, WorkspaceError, closest
from ...protocols import Row
from ..jsonl import parse_json
from .dataset_source import DatasetSource, SourceEntry, UnknownDataError, reference_to
from .manifest import Manifest
from .reference import Reference
from .row_cache import CachedRows, Damage, RowCache


@dataclass(frozen=True, slots=True)
class Listing:
    """One line of `list`."""

    name: str
    version: int
    split: str
    id: str | None
    """None if it could not be identified; `problem` has the reason."""
    rows: int | None
    format: str | None
    bytes: int | None
    where: str
    """`cache`, the name of the source, or both."""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry in full."""

    listing: Listing
    location: str
    """Location of its rows."""
    manifest: Manifest | None
    """None if not cached."""
    preview: tuple[Row, ...]
    """Its first rows; empty if damaged."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Integrity of one cached id."""

    id: str
    reference: str | None
    """None if the manifest cannot be read."""
    problem: str | None

    @property
    def is_intact(self) -> bool:
        return self.problem is None


def list_rows(cache: RowCache, source: DatasetSource, *, derived: bool) -> list[Listing]:
    """All entries of the source and the cache, each id once, by name and version."""
    cached = {manifest.id: manifest for manifest in cache.manifests()}
    listings: list[Listing] = []
    for item in source.list(cache.kind):
        try:
            entry = source.describe(cache.kind, name=str(reference_to(item)))
        except EvsysError as error:  # one bad file must not hide the others
            listings.append(
                Listing(item.name, item.version, item.split, None, None, None, None, source.name, problem=str(error))
            )
            continue
        cached.pop(entry.id, None)
        listings.append(_list_entry(entry, source, cache))
    listings += [_list_cached(manifest, cache) for manifest in cached.values() if derived or not manifest.is_derived]
    return sorted(listings, key=lambda listing: (listing.name, listing.version, listing.split, listing.id or ""))


def show_rows(cache: RowCache, source: DatasetSource, target: str | SourceEntry, rows: int) -> Shown:
    """Show a cached id, or a source entry that may not be cached."""
    id = target if isinstance(target, str) else target.id
    state = cache.inspect(id)
    if isinstance(state, CachedRows):
        return Shown(
            _list_cached(state.manifest, cache), str(state.path), state.manifest, tuple(islice(state.rows(), rows))
        )
    if isinstance(target, SourceEntry):
        lines = islice(_parse(source.rows(target), target.location), rows)
        return Shown(_list_entry(target, source, cache), target.location, None, tuple(lines))
    problem = state.reason if isinstance(state, Damage) else "it is gone"
    manifest = state.manifest if isinstance(state, Damage) else None
    if manifest is None:
        raise WorkspaceError(f"{cache.kind} '{id}' in {cache.folder} cannot be shown: {problem}.")
    return Shown(_list_cached(manifest, cache, problem), str(cache.data_path(id)), manifest, ())


def verify_rows(cache: RowCache, ref: str | None) -> list[Verdict]:
    """A verdict for every cached id, or for those of `ref`."""
    return [_verdict(cache, id) for id in (cache.ids() if ref is None else _ids_of(cache, ref))]


def _verdict(cache: RowCache, id: str) -> Verdict:
    try:
        state = cache.inspect(id, thorough=True)
    except WorkspaceError as error:  # a stray file whose name is not an id
        return Verdict(id, None, str(error))
    manifest = state.manifest if state is not None else None
    reference = None if manifest is None else str(reference_to(manifest))
    return Verdict(id, reference, state.reason if isinstance(state, Damage) else None)


def _ids_of(cache: RowCache, ref: str) -> list[str]:
    ids = cache.ids()
    if ref in ids:
        return [ref]
    reference, manifests = Reference.parse(ref), cache.manifests()
    matches = [manifest.id for manifest in manifests if _matches(reference, manifest)]
    if not matches:
        guess = closest(ref, [*(manifest.name for manifest in manifests), *ids])
        raise UnknownDataError(
            f"{cache.kind} '{ref}' is not in the workspace"
            + (f"; did you mean '{guess}'?" if guess else ".")
            + f" `evsys {cache.kind} list` shows what is."
        )
    return matches


def _matches(reference: Reference, manifest: Manifest) -> bool:
    return (
        reference.name == manifest.name
        and reference.version in (None, manifest.version)
        and reference.split in (None, manifest.split)
    )


def _list_cached(manifest: Manifest, cache: RowCache, problem: str | None = None) -> Listing:
    state = None if problem else cache.inspect(manifest.id)
    return Listing(
        *(manifest.name, manifest.version, manifest.split, manifest.id),
        *(manifest.rows, manifest.format, manifest.bytes),
        where=f"cache ({manifest.lineage.origin})",
        problem=problem or (state.reason if isinstance(state, Damage) else None),
    )


def _list_entry(entry: SourceEntry, source: DatasetSource, cache: RowCache) -> Listing:
    state = cache.inspect(entry.id)
    return Listing(
        *(entry.name, entry.version, entry.split, entry.id),
        *(entry.rows, entry.format, entry.bytes),
        where=source.name if state is None else f"{source.name}, cache",
        problem=state.reason if isinstance(state, Damage) else None,
    )


def _parse(rows: Iterable[bytes | Row], where: str) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, bytes):
            yield row
        elif row.strip():
            yield parse_json(row, f"{where}:{number}")


def as_json(value: Listing | Shown | Verdict) -> dict[str, Any]:
    """The JSON form for `--json`."""
    match value:
        case Shown():
            manifest = None if value.manifest is None else value.manifest.model_dump(mode="json")
            return {
                **as_json(value.listing),
                "location": value.location,
                "manifest": manifest,
                "preview": list(value.preview),
            }
        case Listing():
            fields = ("name", "version", "split", "id", "rows", "format", "bytes", "where", "problem")
            return {name: getattr(value, name) for name in fields}
        case Verdict():
            return {"id": value.id, "reference": value.reference, "intact": value.is_intact, "problem": value.problem}
