"""Lists of the folders that hold experiments and scorings, so that `evsys history` finds them.

`./outputs` is always searched and not listed. Folders inside the project are listed relative to it, so that it can be
moved. A scoring outside of experiments (`evsys benchmark run`, `evsys eval model`) is a folder with `result.json`, in
`outputs/benchmarks` or in the list. A list that cannot be written fails no run and no scoring.

    remember_output_root(config.output_dir)
    write_scoring(folder, "benchmark", result.to_dict())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EvsysError
from ...files import write_json, write_text
from ...log import get_logger
from ...paths import project_root, workspace_dir
from ..layout import DEFAULT_ROOT, DRY_RUNS, OUTPUT_ROOTS, SCORING, SCORINGS, STANDALONE, lock_beside
from ..lock import exclusive

if TYPE_CHECKING:
    from ..values import Object

_MOST_ROOTS, _MOST_SCORINGS = 200, 500
"""Longest lists of folders; older folders are then named with --root."""
_MOST_READ = 50
_SEARCHED_ANYWAY = (DEFAULT_ROOT, f"{DEFAULT_ROOT}/{DRY_RUNS}")


def remember_output_root(path: str | Path) -> None:
    """Add a folder to `.evsys/output_roots.txt`, because experiments are written below it."""
    _note_folder(Path(path), OUTPUT_ROOTS, "experiments", _MOST_ROOTS, _SEARCHED_ANYWAY, relative=True)


def read_output_roots(start: Path | None = None) -> list[Path]:
    """The listed folders of experiments, oldest first."""
    return _read_folders(OUTPUT_ROOTS, start)


def write_scoring(folder: Path, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result.json` of a scoring outside of experiments, next to its predictions."""
    from datetime import UTC, datetime  # imported here to keep the reading of the lists fast

    record = {"record": 1, "kind": kind, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **content}
    write_json(folder / SCORING, record)
    _note_folder(folder, SCORINGS, "a scoring", _MOST_SCORINGS)
    return record


def read_scorings(roots: Sequence[Path], *, elsewhere: bool) -> list[Object]:
    """The scorings below the roots and, with `elsewhere`, in the project's list; the newest 50."""
    from ..values import mtime, read_object

    paths = [path for root in roots for path in (root / STANDALONE).glob(f"*/*/{SCORING}")]
    paths += [folder / SCORING for folder in _read_folders(SCORINGS)] if elsewhere else []
    files = {path.resolve() for path in paths}
    newest = sorted(files, key=lambda path: (-(mtime(path) or 0.0), str(path)))[:_MOST_READ]
    return [{**content, "path": str(path.parent)} for path in newest if (content := read_object(path))]


def is_lasting(root: Path) -> bool:
    """Whether a folder is permanent: not a temporary one, unless the project itself is temporary."""
    import tempfile  # imports archive modules, which slow down `evsys history`

    temporary = Path(tempfile.gettempdir()).resolve()
    return not root.is_relative_to(temporary) or project_root().is_relative_to(temporary)


def _note_folder(
    folder: Path,
    list_name: str,
    what: str,
    most: int,
    searched_anyway: Sequence[str] = (),
    *,
    relative: bool = False,
) -> None:
    try:
        path, file, base = folder.resolve(), workspace_dir() / list_name, project_root()
        unusable = "\n" in str(path) or "\r" in str(path)  # the list has one folder per line
        if unusable or path in [base / folder for folder in searched_anyway] or not is_lasting(path):
            return
        # Read under the lock, because the whole list is rewritten and other processes may add to it.
        with exclusive(lock_beside(file), str(file)):
            known = _read_folders(list_name)
            if path in known:
                return
            roots = [*(folder for folder in known if folder.is_dir()), path][-most:]  # without removed folders
            inside = [relative and root.is_relative_to(base) and root != base for root in roots]
            lines = [
                root.relative_to(base) if is_inside else root for root, is_inside in zip(roots, inside, strict=True)
            ]
            write_text(file, "".join(f"{line}\n" for line in lines), verbatim=True)
    except (OSError, ValueError, EvsysError) as error:
        get_logger(__name__).warning("%s could not be listed as a folder of %s: %s", folder, what, error)


def _read_folders(list_name: str, start: Path | None = None) -> list[Path]:
    try:
        lines = (workspace_dir(start) / list_name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    base = project_root(start)
    return [base / line for line in dict.fromkeys(map(str.strip, lines)) if line and "\x00" not in line]
