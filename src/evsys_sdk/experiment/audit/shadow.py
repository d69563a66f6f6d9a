"""A project as it would be without what was written into it during an experiment.

    with make_shadow(project, began, ended) as folder:      the project itself where nothing was

A verifier may keep files, and repeat from them what it said before. Asked in the shadow it must judge again. Files
are left out by the time at which they were last changed, so that those of a copied or cloned project all stay.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...paths import in_project
from ...record.layout import DEFAULT_ROOT
from ...record.project_files.known_folders import read_output_roots

_MOST = 50_000
"""Entries of a project that are looked at."""
_CODE = (".py", ".pyc", ".so", ".toml")


@contextmanager
def make_shadow(project: Path, began: float, ended: float) -> Generator[Path]:
    """A folder of links to everything in a project but what was written in that time."""
    written = set(_find_written(project, began, ended))
    if not written:
        yield project
        return
    with tempfile.TemporaryDirectory(prefix="evsys-audit-") as folder:
        _link(project, Path(folder), written)
        yield Path(folder)


def _find_written(project: Path, began: float, ended: float) -> Iterator[Path]:
    """Files of a project that were last changed in a time; what the package itself writes is not meant."""
    own = {path.resolve() for path in (in_project(DEFAULT_ROOT), *read_output_roots())}
    seen = 0
    for place, folders, files in os.walk(project):
        visible = [one for one in folders if not one.startswith((".", "__"))]
        # In place: `os.walk` then skips these folders.
        folders[:] = [one for one in visible if Path(place, one).resolve() not in own]
        seen += len(files)
        if seen > _MOST:
            return
        for path in (Path(place, one) for one in files if not one.endswith(_CODE)):
            if path.is_file() and began <= path.stat().st_mtime <= ended:
                yield path


def _link(source: Path, target: Path, without: set[Path]) -> None:
    for entry in source.iterdir():
        if entry in without:
            continue
        if any(path.is_relative_to(entry) for path in without):
            (target / entry.name).mkdir()
            _link(entry, target / entry.name, without)
        else:
            (target / entry.name).symlink_to(entry)
