"""Names and folders of checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ..errors import BackendError, show

MANIFEST: Final = "manifest.json"
"""Written last; a folder without it has no complete checkpoint."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def checkpoint_folder(run_dir: Path, name: str, kind: str) -> Path:
    """The folder of a new checkpoint; refuses existing and invalid names."""
    if not _NAME.fullmatch(name):
        raise BackendError(f"a checkpoint cannot be called {show(name)}. Use letters, digits, '.', '_' and '-'.")
    folder = run_dir / "checkpoints" / name / kind
    check_free(folder)
    return folder


def check_free(folder: Path) -> None:
    """Refuse a folder with a checkpoint. Call it on naming and on writing, which may be far apart."""
    if (folder / MANIFEST).exists():
        raise BackendError(f"the checkpoint '{folder.parent.name}' exists already in {folder}. Use another name.")
