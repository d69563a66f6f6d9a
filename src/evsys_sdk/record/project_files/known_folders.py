"""Which folders hold experiments and scorings, noted down when they are written so that `evsys history` finds them.

`./outputs` is looked at anyway and not noted. Folders of experiments inside the project are noted relative to it: it
may be moved with its history. A scoring outside of any experiment (`evsys benchmark run`, `evsys eval model`) is a
folder with `result.json`; those below `outputs/benchmarks` are found there, others by their note. Both lists are a
convenience: no run and no scoring fails because of them.

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
"""A project that writes to more folders of experiments than this names them with --root."""
_LOOKED_AT_ANYWAY = (DEFAULT_ROOT, f"{DEFAULT_ROOT}/{DRY_RUNS}")


def remember_output_root(path: str | Path, *, start: Path | None = None) -> None:
    """Note in `.evsys/output_roots.txt` that experiments are written below `path`."""
    _note_folder(Path(path), OUTPUT_ROOTS, "experiments", _MOST_ROOTS, start, _LOOKED_AT_ANYWAY, relative=True)


def read_output_roots(start: Path | None = None) -> list[Path]:
    """The folders that were noted, oldest first."""
    return _read_folders(OUTPUT_ROOTS, start)


def write_scoring(folder: Path, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result.json` of a scoring outside of any experiment, next to its predictions."""
    from datetime import UTC, datetime  # who only asks where experiments are needs none of it

    record = {"record": 1, "kind": kind, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **content}
    write_json(folder / SCORING, record)
    _note_folder(folder, SCORINGS, "a scoring", _MOST_SCORINGS)
    return record


def read_scorings(roots: Sequence[Path], *, elsewhere: bool, most: int = 50) -> list[Object]:
    """The results below some roots and, with `elsewhere`, wherever this project wrote them; the newest first."""
    from ..values import mtime, read_object

    found = [path for root in roots for path in (root / STANDALONE).glob(f"*/*/{SCORING}")]
    found += [folder / SCORING for folder in _read_folders(SCORINGS)] if elsewhere else []
    files = {path.resolve() for path in found}
    newest = sorted(files, key=lambda path: (-(mtime(path) or 0.0), str(path)))[:most]
    return [{**content, "path": str(path.parent)} for path in newest if (content := read_object(path))]


def is_lasting(root: Path, start: Path | None = None) -> bool:
    """Whether what is written there stays: what a project elsewhere writes to a temporary folder is thrown away."""
    import tempfile  # brings archives along, which a look at the history does not need

    temporary = Path(tempfile.gettempdir()).resolve()
    return not root.is_relative_to(temporary) or project_root(start).is_relative_to(temporary)


def _note_folder(
    folder: Path,
    list_name: str,
    what: str,
    most: int,
    start: Path | None = None,
    known_anyway: Sequence[str] = (),
    *,
    relative: bool = False,
) -> None:
    try:
        path, file, base = folder.resolve(), workspace_dir(start) / list_name, project_root(start)
        unusable = "\n" in str(path) or "\r" in str(path)  # one folder a line
        if unusable or path in [base / one for one in known_anyway] or not is_lasting(path, start):
            return
        # Read under the lock: the list is written as a whole, and would lose what another process adds meanwhile.
        with exclusive(lock_beside(file), str(file)):
            known = _read_folders(list_name, start)
            if path in known:
                return
            kept = [*(one for one in known if one.is_dir()), path][-most:]  # those that are gone make room
            inside = [relative and one.is_relative_to(base) and one != base for one in kept]
            shown = [one.relative_to(base) if is_inside else one for one, is_inside in zip(kept, inside, strict=True)]
            write_text(file, "".join(f"{one}\n" for one in shown), verbatim=True)
    except (OSError, ValueError, EvsysError) as error:
        get_logger(__name__).warning("%s could not be noted as a folder of %s: %s", folder, what, error)


def _read_folders(list_name: str, start: Path | None = None) -> list[Path]:
    try:
        lines = (workspace_dir(start) / list_name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    base = project_root(start)
    return [base / line for line in dict.fromkeys(map(str.strip, lines)) if line and "\x00" not in line]
