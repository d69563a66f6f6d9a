"""Failures that are the same but for a number, a path or an id, counted once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PARTICULARS = r"'[^']*'|\"[^\"]*\"|\S*/\S+|0x[0-9a-fA-F]+|\d[\d.,:eE+\-_]*"
"""What differs between two cases of the same failure: quoted values, paths, addresses, numbers."""


@dataclass(slots=True)
class ReasonGroup:
    """One reason and how often it was the one."""

    example: str
    experiment: str
    count: int = 0


def grouped_reasons(told: Iterable[tuple[str, str]]) -> list[ReasonGroup]:
    """The different reasons among (experiment, reason), the most frequent first; examples are the first told."""
    particulars = re.compile(_PARTICULARS)  # here, because most histories fail in few ways, or none
    groups: dict[str, ReasonGroup] = {}
    for experiment, reason in told:
        key = particulars.sub("#", reason.split("\n", 1)[0])[:160]
        groups.setdefault(key, ReasonGroup(reason, experiment)).count += 1
    return sorted(groups.values(), key=lambda group: (-group.count, group.example))
