"""A view of a project without the files written into it during an experiment.

    with make_shadow(project, began, ended) as folder:      the project itself if no such files exist

A verifier may cache its results in files. Without these files it has to verify again. Files are selected by their
modification time, so that a copied or cloned project keeps all its files.
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
"""Maximum number of files to examine."""
_CODE = (".py", ".pyc", ".so", ".toml")


@contextmanager
def make_shadow(project: Path, began: float, ended: float) -> Generator[Path]:
    """Yield a folder of links to all files of a project, except those written between two times."""
    written = set(_find_written(project, began, ended))
    if not written:
        yield project
        return
    with tempfile.TemporaryDirectory(prefix="evsys-audit-") as folder:
        _link(project, Path(folder), written)
        yield Path(folder)


def _find_written(project: Path, began: float, ended: float) -> Iterator[Path]:
    """Yield files of a project last changed between two times, except code, hidden folders and output folders."""
    own = {path.resolve() for path in (in_project(DEFAULT_ROOT), *read_output_roots())}
    seen = 0
    for place, folders, files in os.walk(project):
        visible = [one for one in folders if not one.startswith((".", "__"))]
        # In place, so that `os.walk` skips the other folders.
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
