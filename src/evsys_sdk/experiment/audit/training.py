"""What the journal tells about the training of arms that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...record.events import Event, Kind, read_trained_tasks
from ...record.values import items, number, part

_NAMED = 3


def find_trained_tasks(events: Sequence[Event]) -> Iterator[str]:
    """Tasks that an arm learned from, in this attempt at it or in one that was killed."""
    noted = read_trained_tasks(events)
    seen = {(arm, name): (len(tasks), tasks) for arm, found in noted.items() for name, tasks in found.items()}
    for event in events:
        for name in event.part("trained_on") if event.kind == Kind.ARM_ENDED else ():
            told = part(event.payload, "trained_on", name)
            n, first = int(number(told.get("n")) or 0), [str(task) for task in items(told.get("first"))]
            key = event.text("arm"), name
            seen[key] = max(seen.get(key, (0, [])), (n, first), key=lambda one: one[0])
    for (arm, name), (n, tasks) in seen.items():
        named = ", ".join(f"'{task}'" for task in tasks[:_NAMED])
        yield f"{arm} was trained on {n} tasks of '{name}': {named}"
