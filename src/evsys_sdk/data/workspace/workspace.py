"""The workspace, `.evsys/`: datasets and benchmarks by name or id, cached as immutable rows with their lineage.

    workspace = Workspace()                                  # of the project around the current folder
    raw = workspace.pull_dataset(name="sft")                 # latest version; or name="sft@v2:test", or id=...
    rows = workspace.materialise(raw, config.data.transforms)
    rows.id, rows.manifest.lineage, rows.rows()

The same id is always the same bytes. `row_cache.py` stores the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...builtins import REMOTE_DATA
from ...config.base import KindSpec
from ...errors import WorkspaceError
from ...log import get_logger
from ...paths import WORKSPACE_DIR, project_root
from ..pipeline import apply_transforms, build_transforms
from .dataset_source import (
    Available,
    DatasetSource,
    SourceEntry,
    UnknownDataError,
    choose,
    default_split,
    reference_to,
    unknown_id,
)
from .inventory import Listing, Shown, Verdict, list_rows, show_rows, verify_rows
from .local_folder import LocalFolder, identify, read_content, read_lines, read_metadata
from .manifest import ADDED, DERIVED, PATH, Lineage, Manifest, record_transforms
from .reference import FOLDERS, Kind, Reference, check_name, content_id, fingerprint, id_prefix
from .row_cache import CachedRows, Damage, Draft, RowCache

# Resolution of names among the source's entries, added rows and earlier pulls.
#
# The source and added rows have equal rank. Earlier pulls count only if neither has the name, so that a project without
# its `data/` folder still runs, and with it always uses the latest version.


class Names:
    """The names of one kind."""

    def __init__(self, cache: RowCache, source: DatasetSource) -> None:
        self._cache = cache
        self._source = source
        self._kind: Kind = cache.kind

    def resolve(self, reference: Reference) -> SourceEntry | Manifest:
        """The current entry of a reference; without its source, the one pulled earlier."""
        items = self._all()
        try:
            chosen = choose(self._kind, reference, items)
        except UnknownDataError:
            chosen = choose(self._kind, reference, [*items, *self._manifests(self._source.name)])
            get_logger(__name__).warning(
                "%s '%s' is not in its source any more; using what was pulled from there (%s).",
                *(self._kind, reference_to(chosen), chosen.location),
            )
        if isinstance(chosen, Manifest):
            return chosen
        entry = self._describe(chosen)
        self._refuse_other_content(entry)
        return entry

    def version_for(self, reference: Reference, split: str, sha256: str | None) -> int:
        """The version for added content: an existing one with equal content, the requested, or the next one."""
        same_name = [item for item in self._all() if item.name == reference.name]
        rivals = [item for item in same_name if item.split == split and reference.version in (None, item.version)]
        # The newest first, for content with two versions.
        for item in sorted(rivals, key=lambda item: item.version, reverse=True):
            entry = item if isinstance(item, Manifest) else self._describe(item)
            if entry.sha256 == sha256:
                return item.version
            if reference.version is not None:
                raise WorkspaceError(
                    f"{self._kind} '{reference_to(item)}' exists with other content ({entry.location}), and a version "
                    "never changes. Leave the version out to get the next one, or use another name."
                )
        if reference.version is not None:
            return reference.version
        latest = max((item.version for item in same_name), default=0)
        # A split added later belongs to the same version.
        is_free = all(item.split != split for item in same_name if item.version == latest)
        return latest if latest and is_free else latest + 1

    def warn_of_change(self, entry: SourceEntry) -> None:
        """Warn if a source has other content under a name and version than at the last pull."""
        for before in self._manifests(self._source.name):
            if reference_to(before) == reference_to(entry) and before.id != entry.id:
                get_logger(__name__).warning(
                    "%s '%s' has changed since %s: it was %s and is now %s. Give changed rows a new version.",
                    *(self._kind, reference_to(entry), f"{before.created:%Y-%m-%d}", before.id, entry.id),
                )

    def _all(self) -> Sequence[Available | Manifest]:
        """Everything with a name; content that was added and is also in the source counts once."""
        offered = self._source.list(self._kind)
        references = {reference_to(item) for item in offered}
        return [*offered, *(added for added in self._manifests(ADDED) if reference_to(added) not in references)]

    def _manifests(self, origin: str) -> list[Manifest]:
        return [manifest for manifest in self._cache.manifests() if manifest.lineage.origin == origin]

    def _describe(self, item: Available) -> SourceEntry:
        return self._source.describe(self._kind, name=str(reference_to(item)))

    def _refuse_other_content(self, entry: SourceEntry) -> None:
        for added in self._manifests(ADDED):
            if reference_to(added) == reference_to(entry) and added.sha256 != entry.sha256:
                raise WorkspaceError(
                    f"{self._kind} '{reference_to(entry)}' has two contents: {entry.location} ({entry.id}) and one "
                    f"that was added ({added.id}). Give {entry.location} another version, or name one by its id."
                )


@dataclass(frozen=True, slots=True)
class Added:
    """The result of `add`."""

    rows: CachedRows
    is_new: bool
    """False if the same content already existed under that name."""


class Workspace:
    """The `.evsys/` folder of one project."""

    def __init__(self, root: Path | str | None = None, *, source: DatasetSource | None = None) -> None:
        self.root = project_root() if root is None else Path(root).absolute()
        self.folder = self.root / WORKSPACE_DIR
        self._local = LocalFolder(self.root)
        self._source: DatasetSource = source or self._local
        self._caches = {kind: RowCache(self.folder / name, kind) for kind, name in FOLDERS.items()}
        self._names = {kind: Names(cache, self._source) for kind, cache in self._caches.items()}

    def pull_dataset(
        self,
        *,
        id: str | None = None,
        name: str | None = None,
        path: Path | str | None = None,
        split: str | None = None,
    ) -> CachedRows:
        """The rows of a dataset: by id, by name (`sft`, `sft@v2`, `sft@v2:test`) or from a file or folder."""
        return self._pull("dataset", id, name, path, split)

    def pull_benchmark(
        self, *, id: str | None = None, name: str | None = None, path: Path | str | None = None
    ) -> CachedRows:
        """The tasks of a benchmark: by id, by name or from a file or folder."""
        return self._pull("benchmark", id, name, path, None)

    def materialise(self, parent: CachedRows, transforms: Sequence[KindSpec]) -> CachedRows:
        """The rows after a chain of transforms, computed once per parent, params and code."""
        if not transforms:
            return parent
        steps = build_transforms(transforms)
        records = record_transforms(transforms)
        made_by = fingerprint(parent.id, [record.model_dump(mode="json") for record in records])
        draft = Draft(  # the x distinguishes derivation ids from content ids
            f"{id_prefix(parent.name, parent.version, parent.split)}x{made_by}",
            parent.name,
            parent.version,
            parent.split,
            Lineage(origin=DERIVED, source=parent.manifest.lineage.source, parent=parent.id, transforms=records),
        )
        where = f"{parent.id} after {' > '.join(record.kind for record in records)}"
        cache = self._caches[parent.manifest.kind]
        return cache.get_or_store(draft, lambda: apply_transforms(parent.rows(), steps), where=where)

    def add(
        self, kind: Kind, path: Path | str, name: str, *, version: int | None = None, split: str | None = None
    ) -> Added:
        """Copy a JSONL file into the workspace under a name; repeated content under the same name is added once."""
        reference = Reference(check_name(name), version)
        split = check_name(split or default_split(kind), what="split")
        file = self._local.at(kind, Path(path), split if Path(path).is_dir() and kind == "dataset" else None)
        sha256 = read_content(file.path).sha256
        version = self._names[kind].version_for(reference, split, sha256)
        id = content_id(kind, name=name, version=version, split=split, sha256=sha256)
        is_new = not isinstance(self._caches[kind].inspect(id), CachedRows)
        lineage = Lineage(origin=ADDED, source=file.location)
        draft = Draft(id, name, version, split, lineage, read_metadata(file.metadata_path))
        return Added(self._store_file(kind, draft, file.path, sha256), is_new)

    def list(self, kind: Kind, *, derived: bool = False) -> Sequence[Listing]:
        """The names and ids in the workspace and the source; `derived` includes derived rows."""
        return list_rows(self._caches[kind], self._source, derived=derived)

    def show(self, kind: Kind, ref: str, *, rows: int = 3) -> Shown:
        """The details of an id or reference, with its first rows."""
        cache = self._caches[kind]
        if ref in cache.ids():
            return show_rows(cache, self._source, ref, rows)
        try:
            entry = self._names[kind].resolve(Reference.parse(ref))
        except UnknownDataError as unknown:
            try:
                entry = self._source.describe(kind, id=ref)
            except UnknownDataError:
                raise unknown from None
        return show_rows(cache, self._source, entry if isinstance(entry, SourceEntry) else entry.id, rows)

    def verify(self, kind: Kind, ref: str | None = None) -> Sequence[Verdict]:
        """Hash everything cached, or the rows of `ref`, and report problems."""
        return verify_rows(self._caches[kind], ref)

    def _pull(
        self, kind: Kind, id: str | None, name: str | None, path: Path | str | None, split: str | None
    ) -> CachedRows:
        """Rows known to the project; unknown ones are pulled from its dashboard and cached."""
        try:
            return self._pull_here(kind, id, name, path, split)
        except UnknownDataError:
            # Another source has already been queried.
            remote = REMOTE_DATA.load().from_environment() if self._source is self._local else None
            if remote is None:
                raise
            return Workspace(self.root, source=remote)._pull_here(kind, id, name, path, split)

    def _pull_here(
        self, kind: Kind, id: str | None, name: str | None, path: Path | str | None, split: str | None
    ) -> CachedRows:
        arguments = {key: value for key, value in {"id": id, "name": name, "path": path}.items() if value is not None}
        if len(arguments) != 1:
            got = " and ".join(f"{key} {str(value)!r}" for key, value in arguments.items()) or "none"
            raise WorkspaceError(f"a {kind} needs exactly one of id, name and path (got {got}).")
        if split is not None:
            check_name(split, what="split")
        if id is not None:
            rows = self._pull_id(kind, id)
            if split not in (None, rows.split):
                raise WorkspaceError(f"{kind} id '{id}' is split '{rows.split}', not '{split}'. Name the other's id.")
            return rows
        if path is not None:
            return self._pull_path(kind, Path(path), split)
        entry = self._names[kind].resolve(_with_split(Reference.parse(name or ""), split))
        return self._pull_entry(entry) if isinstance(entry, SourceEntry) else self._pull_id(kind, entry.id)

    def _pull_id(self, kind: Kind, id: str) -> CachedRows:
        state = self._caches[kind].inspect(id)
        if isinstance(state, CachedRows):
            return state
        try:
            return self._pull_entry(self._source.describe(kind, id=id))
        except UnknownDataError:
            if state is None:
                raise unknown_id(kind, id, self._caches[kind].ids()) from None
            return self._recover(kind, id, state)

    def _pull_path(self, kind: Kind, path: Path, split: str | None) -> CachedRows:
        file = self._local.at(kind, path, split)
        entry = identify(file)
        origin = PATH if file.is_outside_layout else self._local.name
        return self._store_file(kind, _draft(entry, origin), file.path, entry.sha256)

    def _pull_entry(self, entry: SourceEntry) -> CachedRows:
        cache = self._caches[entry.kind]
        if cache.inspect(entry.id) is None:  # warn only when new content is cached
            self._names[entry.kind].warn_of_change(entry)
        draft, rows = _draft(entry, self._source.name), partial(self._source.rows, entry)
        return cache.get_or_store(draft, rows, where=entry.location, sha256=entry.sha256)

    def _store_file(self, kind: Kind, draft: Draft, path: Path, sha256: str | None) -> CachedRows:
        return self._caches[kind].get_or_store(draft, partial(read_lines, path), where=str(path), sha256=sha256)

    def _recover(self, kind: Kind, id: str, damage: Damage) -> CachedRows:
        """Restore damaged rows from their original file, if its content is unchanged."""
        manifest = damage.manifest
        if manifest is not None and manifest.lineage.origin in (ADDED, PATH):
            path = self.root / manifest.lineage.source
            if path.is_file() and read_content(path).sha256 == manifest.sha256:
                return self._store_file(kind, Draft.of(manifest), path, manifest.sha256)
        raise WorkspaceError(
            f"{kind} '{id}' in {self._caches[kind].folder} cannot be used: {damage.reason}. {_remedy(id, manifest)}"
        )


def _with_split(reference: Reference, split: str | None) -> Reference:
    if split is not None and reference.split not in (None, split):
        raise WorkspaceError(f"'{reference}' names split '{reference.split}', but split is '{split}'. Keep one.")
    return replace(reference, split=reference.split or split)


def _draft(entry: SourceEntry, origin: str) -> Draft:
    lineage = Lineage(origin=origin, source=entry.location)
    return Draft(entry.id, entry.name, entry.version, entry.split, lineage, entry.metadata)


def _remedy(id: str, manifest: Manifest | None) -> str:
    give_up = f"or delete the files of {id} there to give the id up"
    if manifest is None:
        return f"The origin of its rows is unknown: restore both files from a copy, {give_up}."
    if manifest.is_derived:
        return f"Run the experiment again: these rows are derived again from {manifest.lineage.parent}."
    return (
        f"Its rows came from {manifest.lineage.source}, which does not have that content any more: restore it there, "
        f"restore the cached file from a copy, {give_up}."
    )
