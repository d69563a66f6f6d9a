"""How often a test set had been looked at before: each look lets a later choice fit it a little.

Counted over the folder that experiments of one project share, for tasks with the same content hash. Only experiments
that started earlier count, so the number does not change when later ones look as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Looks:
    """Scorings of a test set."""

    before: int = 0
    """In earlier experiments."""
    experiments: int = 0
    """How many experiments those were."""
    here: int = 0
    """In this experiment."""


def count_looks(path: Path, hashes: Iterable[str], *, started: float | None) -> dict[str, Looks]:
    """Earlier looks at each test set, by the sha256 of its tasks."""
    found = {sha256: Looks(here=_scorings(path, sha256)) for sha256 in sorted(hashes)}
    if not found:
        return {}
    for sibling in _siblings(path.resolve()):
        if _started_before(sibling, started):
            for sha256, so_far in found.items():
                if seen := _scorings(sibling, sha256):
                    found[sha256] = Looks(so_far.before + seen, so_far.experiments + 1, so_far.here)
    return found


def _scorings(experiment: Path, sha256: str) -> int:
    return sum(_test_scorings(scores, sha256) for scores in experiment.glob("*/scores.jsonl"))


def _siblings(path: Path) -> Iterator[Path]:
    for folder in sorted(path.parent.iterdir()):
        if folder != path and not folder.name.startswith(".") and (folder / "config.json").is_file():
            yield folder


def _started_before(experiment: Path, moment: float | None) -> bool:
    """Whether it began earlier; one that does not say when is taken to have."""
    if moment is None:
        return True
    try:
        with (experiment / "journal.jsonl").open("rb") as file:
            first: Any = json.loads(file.readline())
        return float(first["time"]) < moment
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _test_scorings(path: Path, sha256: str) -> int:
    """At how many steps the test set with these tasks was scored; only lines that mention it are parsed."""
    wanted = sha256.encode()
    with path.open("rb") as file:
        steps = {_test_step(line, sha256) for line in file if wanted in line}
    return len(steps - {None})


def _test_step(line: bytes, sha256: str) -> Any:
    try:
        record: Any = json.loads(line)
        return int(record["step"]) if record["split"] == "test" and record["sha256"] == sha256 else None
    except (ValueError, KeyError, TypeError):
        return None
