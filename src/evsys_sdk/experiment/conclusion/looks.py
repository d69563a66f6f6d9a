"""How often a test set had been looked at before: each look lets a later choice fit it a little.

Counted over the folder that experiments of one project share, for tasks with the same content hash. Only experiments
that started earlier count, so the number does not change when later ones look as well.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    wanted = sorted(hashes)
    if not wanted:
        return {}
    here = _scorings(path, wanted)
    before: Counter[str] = Counter()
    experiments: Counter[str] = Counter()
    for sibling in _siblings(path.resolve()):
        if _started_before(sibling, started):
            seen = _scorings(sibling, wanted)
            before.update(seen)
            experiments.update(seen.keys())
    return {sha256: Looks(before[sha256], experiments[sha256], here[sha256]) for sha256 in wanted}


def _siblings(path: Path) -> Iterator[Path]:
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name != path.name and not entry.name.startswith(".") and entry.is_dir():
                yield Path(entry.path)


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


def _scorings(experiment: Path, hashes: Sequence[str]) -> Counter[str]:
    """At how many steps of its arms each test set was scored."""
    found: Counter[str] = Counter()
    with os.scandir(experiment) as entries:
        arms = [entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    for arm in arms:
        try:
            with open(os.path.join(arm, "scores.jsonl"), "rb") as file:
                steps = {step for line in file for step in _test_steps(line, hashes)}
        except OSError:  # most often: it was not scored
            continue
        found.update(sha256 for sha256, _ in steps)
    return found


def _test_steps(line: bytes, hashes: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Which of the sets a line scores, and at which step; only lines that mention one of them are parsed."""
    for sha256 in hashes:
        if sha256.encode() in line:
            try:
                record: Any = json.loads(line)
                if record["split"] == "test" and record["sha256"] == sha256:
                    yield sha256, int(record["step"])
            except (ValueError, KeyError, TypeError):
                continue
