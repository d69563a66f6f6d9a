"""Scorings outside of any experiment (`evsys benchmark run`, `evsys eval model`), and where they are.

Each folder holds `result.json`. Those below `outputs/benchmarks` are found there; others are noted in `.evsys/` when
they are written, so that history and context know them. The list is a convenience: no scoring fails because of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import EvsysError
from ...files import write_json, write_text
from ...log import get_logger
from ...paths import workspace_dir
from ..layout import SCORING, SCORINGS, STANDALONE, lock_beside
from ..lock import exclusive
from ..values import Object, mtime, read_object
from .roots import is_lasting

_MOST = 500


def write_scoring(folder: Path, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result.json` of a scoring outside of any experiment, beside its predictions."""
    record = {"record": 1, "kind": kind, "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", **content}
    write_json(folder / SCORING, record)
    _remember(folder)
    return record


def read_scorings(roots: Sequence[Path], *, elsewhere: bool, most: int = 50) -> list[Object]:
    """The results below some roots and, with `elsewhere`, wherever this project wrote them; the newest first."""
    found = [path for root in roots for path in (root / STANDALONE).glob(f"*/*/{SCORING}")]
    found += [folder / SCORING for folder in _recall()] if elsewhere else []
    files = {path.resolve() for path in found}
    newest = sorted(files, key=lambda path: (-(mtime(path) or 0.0), str(path)))[:most]
    return [{**content, "path": str(path.parent)} for path in newest if (content := read_object(path))]


def _remember(folder: Path) -> None:
    try:
        path, file = folder.resolve(), workspace_dir() / SCORINGS
        if "\n" in str(path) or not is_lasting(path):
            return
        with exclusive(lock_beside(file), str(file)):
            known = _recall()
            if path not in known:
                kept = [*(one for one in known if one.is_dir()), path][-_MOST:]
                write_text(file, "".join(f"{one}\n" for one in kept), verbatim=True)
    except (OSError, ValueError, EvsysError) as error:
        get_logger(__name__).warning("%s could not be noted as a folder of a scoring: %s", folder, error)


def _recall() -> list[Path]:
    try:
        lines = (workspace_dir() / SCORINGS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [Path(line) for line in dict.fromkeys(map(str.strip, lines)) if line and "\x00" not in line]
