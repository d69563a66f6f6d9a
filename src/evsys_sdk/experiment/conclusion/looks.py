"""How often a test set had been looked at before: each look lets a later choice fit it a little.

Counted over the folder that experiments of one project share, for tasks with the same content hash. Only experiments
that started earlier count, so the number does not change when later ones look as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...record.events import first_event
from ...record.run_files.scores import find_scored_sets
from ...record.values import subfolders


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
        if _is_earlier(sibling, started):
            seen = _scorings(sibling, wanted)
            before.update(seen)
            experiments.update(seen.keys())
    return {sha256: Looks(before[sha256], experiments[sha256], here[sha256]) for sha256 in wanted}


def _siblings(path: Path) -> list[Path]:
    return [path.parent / name for name in subfolders(path.parent) if name != path.name]


def _is_earlier(experiment: Path, moment: float | None) -> bool:
    """Whether it began earlier; one that does not say when is taken to have."""
    first = first_event(experiment) if moment is not None else None
    return first is None or first.time is None or moment is None or first.time < moment


def _scorings(experiment: Path, hashes: Sequence[str]) -> Counter[str]:
    """At how many steps of its arms each test set was scored."""
    found: Counter[str] = Counter()
    for arm in subfolders(experiment):
        found.update(sha256 for sha256, _ in find_scored_sets(experiment / arm, "test", hashes))
    return found
