"""What a name means: the choice between what the source has, what was added, and what was pulled before.

The source and what was added count alike. What was pulled counts only when neither knows the name, so that a project
without its `data/` folder still runs, and a project with it always says what is newest.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import WorkspaceError
from ..log import get_logger
from .dataset_source import Available, DatasetSource, SourceEntry, UnknownDataError, choose, reference_to
from .lineage import ADDED
from .manifest import Manifest
from .reference import Kind, Reference
from .row_cache import RowCache


class Names:
    """The names of one kind."""

    def __init__(self, cache: RowCache, source: DatasetSource) -> None:
        self._cache = cache
        self._source = source
        self._kind: Kind = cache.kind

    def resolve(self, wanted: Reference) -> SourceEntry | Manifest:
        """What a reference means now; without its source, what it meant when it was pulled."""
        items = self._all()
        try:
            chosen = choose(self._kind, wanted, items)
        except UnknownDataError:
            chosen = choose(self._kind, wanted, [*items, *self._manifests(self._source.name)])
            get_logger(__name__).warning(
                "%s '%s' is not in its source any more; using what was pulled from there (%s).",
                *(self._kind, reference_to(chosen), chosen.location),
            )
        if isinstance(chosen, Manifest):
            return chosen
        entry = self._describe(chosen)
        self._refuse_other_content(entry)
        return entry

    def version_for(self, wanted: Reference, split: str, sha256: str | None) -> int:
        """Under which version content is added: one that has it already, the one asked for, or the next free one."""
        taken = [item for item in self._all() if item.name == wanted.name]
        rivals = [item for item in taken if item.split == split and wanted.version in (None, item.version)]
        for item in sorted(rivals, key=lambda item: item.version, reverse=True):
            known = item if isinstance(item, Manifest) else self._describe(item)
            if known.sha256 == sha256:
                return item.version
            if wanted.version is not None:
                raise WorkspaceError(
                    f"{self._kind} '{reference_to(item)}' exists with other content ({known.location}), and a version "
                    "never changes. Leave the version out to get the next one, or use another name."
                )
        if wanted.version is not None:
            return wanted.version
        latest = max((item.version for item in taken), default=0)
        is_free = all(item.split != split for item in taken if item.version == latest)
        return latest if latest and is_free else latest + 1

    def warn_of_change(self, entry: SourceEntry) -> None:
        """Say so when a source has other content under a name and version than when it was last pulled."""
        for before in self._manifests(self._source.name):
            if reference_to(before) == reference_to(entry) and before.id != entry.id:
                get_logger(__name__).warning(
                    "%s '%s' has changed since %s: it was %s and is now %s. Give changed rows a new version.",
                    *(self._kind, reference_to(entry), f"{before.created:%Y-%m-%d}", before.id, entry.id),
                )

    def _all(self) -> Sequence[Available | Manifest]:
        """Everything that has a name now; what was added and is in the source too stands here once."""
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
