"""A view of a project without the files written into it during an experiment.

    with make_shadow(project, began, ended) as folder:

A verifier may cache its results in files. Without these files it has to verify again. Files are selected by their
modification time, so that a copied or cloned project keeps all its files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ...paths import in_project
from ...record.layout import DEFAULT_ROOT
from ...record.project_files.known_folders import read_output_roots

_CODE = (".py", ".pyc", ".so", ".toml")


@contextmanager
def make_shadow(project: Path, began: float, ended: float) -> Generator[Path]:
    """Yield a folder of links to all files of a project, except those written between two times.

    Code, hidden folders and output folders are linked as they are.
    """
    outputs = {path.resolve() for path in (in_project(DEFAULT_ROOT), *read_output_roots())}
    with tempfile.TemporaryDirectory(prefix="evsys-audit-") as shadow:
        for place, folders, files in os.walk(project):
            target = Path(shadow, Path(place).relative_to(project))
            target.mkdir(exist_ok=True)
            whole = [
                path
                for path in (Path(place, name) for name in folders)
                if path.name.startswith((".", "__")) or path.is_symlink() or path.resolve() in outputs
            ]
            folders[:] = sorted({*folders} - {path.name for path in whole})  # in place, so that `os.walk` skips them
            for path in [*whole, *(Path(place, name) for name in files)]:
                is_file = path.is_file() and not path.name.endswith(_CODE)
                if not is_file or not began <= path.stat().st_mtime <= ended:
                    (target / path.name).symlink_to(path.absolute())
        yield Path(shadow)
