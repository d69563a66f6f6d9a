"""Experiments in the order of their descent: each below the one that `parent_experiment_id` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .summary import ExperimentSummary


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One experiment and where it hangs."""

    summary: ExperimentSummary
    depth: int = 0
    missing_parent: str = ""
    """The parent it names, where that is not among the experiments shown."""
    in_cycle: bool = False
    """Whether its ancestors lead back to itself."""


def tree_lines(summaries: Sequence[ExperimentSummary]) -> list[TreeLine]:
    """Parents before their children, siblings in the order given. Neither cycles nor lost parents lose anybody."""
    parents = _parents(summaries)
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(index)
    lines: list[TreeLine] = []
    done: set[int] = set()
    starts = [index for index, parent in enumerate(parents) if parent is None]
    # Whoever was not reached from a start is in a cycle or hangs below one; each is then started from itself.
    for start in [*starts, *range(len(summaries))]:
        stack = [(start, 0)]
        while stack:
            index, depth = stack.pop()
            if index in done:
                continue
            done.add(index)
            one, parent = summaries[index], parents[index]
            lost = one.parent_id if parent is None else ""
            lines.append(TreeLine(one, depth, lost, in_cycle=parent is not None and depth == 0))
            stack += [(child, depth + 1) for child in reversed(children.get(index, ()))]
    return lines


def _parents(summaries: Sequence[ExperimentSummary]) -> list[int | None]:
    """The place of each one's parent, named by id, by folder, or by name (its latest attempt)."""
    in_time = sorted(enumerate(summaries), key=lambda pair: pair[1].started or 0.0)
    by_id = {one.id: index for index, one in in_time}
    by_folder = {one.folder.name: index for index, one in in_time}
    by_name = {one.name: index for index, one in in_time}
    found: list[int | None] = []
    for index, one in enumerate(summaries):
        named = one.parent_id
        parent = by_id.get(named, by_folder.get(named, by_name.get(named))) if named else None
        found.append(None if parent == index else parent)
    return found
