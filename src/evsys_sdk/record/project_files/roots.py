"""Which folders hold experiments, noted down when they are written so that `evsys history` finds them later.

`./outputs` is looked at anyway and not noted. Folders inside the project are noted relative to it: it may be moved with
its history. The list is a convenience: no run fails because of it.

    remember_output_root(config.output_dir)
"""

from __future__ import annotations

from pathlib import Path

from ...errors import EvsysError
from ...files import write_text
from ...log import get_logger
from ...paths import project_root, workspace_dir
from ..layout import DEFAULT_ROOT, OUTPUT_ROOTS, REHEARSALS, lock_beside
from ..lock import exclusive

_MOST = 200
"""A project that writes to more folders than this names them with --root."""


def remember_output_root(path: str | Path, *, start: Path | None = None) -> None:
    """Note in `.evsys/output_roots.txt` that experiments are written below `path`."""
    try:
        root = Path(path).resolve()
        if not _worth_noting(root, start):
            return
        file = workspace_dir(start) / OUTPUT_ROOTS
        # Read under the lock: the list is written as a whole, and would lose what another process adds meanwhile.
        with exclusive(lock_beside(file), str(file)):
            known = read_output_roots(start)
            if root in known:
                return
            kept = [*(one for one in known if one.is_dir()), root][-_MOST:]  # those that are gone make room
            write_text(file, "".join(f"{_shorten(one, project_root(start))}\n" for one in kept), verbatim=True)
    except (OSError, ValueError, EvsysError) as error:
        get_logger(__name__).warning("%s could not be noted as a folder of experiments: %s", path, error)


def read_output_roots(start: Path | None = None) -> list[Path]:
    """The folders that were noted, oldest first."""
    file = workspace_dir(start) / OUTPUT_ROOTS
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    base = project_root(start)
    return [base / line for line in dict.fromkeys(map(str.strip, lines)) if line and "\x00" not in line]


def _shorten(path: Path, base: Path) -> Path:
    return path.relative_to(base) if path.is_relative_to(base) and path != base else path


def _worth_noting(root: Path, start: Path | None) -> bool:
    default = project_root(start) / DEFAULT_ROOT
    if "\n" in str(root) or "\r" in str(root) or root in (default, default / REHEARSALS):
        return False
    return is_lasting(root, start)


def is_lasting(root: Path, start: Path | None = None) -> bool:
    """Whether what is written there stays: what a project elsewhere writes to a temporary folder is thrown away."""
    import tempfile  # brings archives along, which a look at the history does not need

    temporary = Path(tempfile.gettempdir()).resolve()
    return not root.is_relative_to(temporary) or project_root(start).is_relative_to(temporary)
