"""Everything that was shipped, told from the list of promotions: which deployment is live under which name.

A name (`production`, `canary`) has numbered deployments: `production.1`, `production.2`. The last one that was made or
gone back to is the live one. Nothing else holds that state, so nothing can disagree with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError, closest, show
from ..record.events import Event, Kind
from ..record.promotions import broken_promotions, promotions_file, read_promotions
from ..record.values import Object, text


@dataclass(frozen=True, slots=True)
class Deployment:
    """Weights that were shipped."""

    id: str
    name: str
    number: int
    kind: str
    location: str
    source: Object
    files: dict[str, str] = field(default_factory=dict[str, str])
    """File -> sha256, as it was when it was shipped."""
    params: Object = field(default_factory=dict[str, Any])
    facts: Object = field(default_factory=dict[str, Any])
    gate: str = ""
    """Id of the gate's decision that let it pass; empty where none was asked for."""
    time: float | None = None

    @classmethod
    def of(cls, event: Event) -> Deployment:
        number = event.get("number")
        return cls(
            event.text("deployment"),
            event.text("name"),
            number if isinstance(number, int) else 0,
            event.text("deployer"),
            event.text("location"),
            event.part("source"),
            {name: text(value) for name, value in event.part("files").items()},
            event.part("params"),
            event.part("facts"),
            event.text("gate"),
            event.time,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "location": self.location,
            "source": self.source,
            "files": self.files,
            "params": self.params,
            "facts": self.facts,
            "gate": self.gate or None,
            "time": self.time,
        }


@dataclass(frozen=True, slots=True)
class Rollback:
    """A name that was given back to an earlier deployment, or to none."""

    name: str
    deployment: str
    """What is live since; empty where nothing is."""
    replaced: str
    reason: str
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Deployments:
    """All deployments of a project."""

    all: list[Deployment]
    rollbacks: list[Rollback]
    live: dict[str, str]
    """Name -> id of the deployment that is live under it."""

    @classmethod
    def read(cls, start: Path | None = None) -> Deployments:
        """What the list of promotions tells."""
        return cls.tell(read_promotions(start))

    @classmethod
    def tell(cls, events: Iterable[Event]) -> Deployments:
        found, rollbacks, live = list[Deployment](), list[Rollback](), dict[str, str]()
        for event in events:
            if event.kind == Kind.DEPLOYED:
                found.append(Deployment.of(event))
                live[found[-1].name] = found[-1].id
            elif event.kind == Kind.ROLLED_BACK:
                name, to, replaced, reason = (event.text(key) for key in ("name", "deployment", "replaced", "reason"))
                rollbacks.append(Rollback(name, to, replaced, reason, event.time))
                live[rollbacks[-1].name] = rollbacks[-1].deployment
        return cls(found, rollbacks, {name: id for name, id in live.items() if id})

    def of(self, name: str) -> list[Deployment]:
        """The deployments of a name, oldest first."""
        return [one for one in self.all if one.name == name]

    def live_under(self, name: str) -> Deployment | None:
        """What is live under a name."""
        id = self.live.get(name)
        return next((one for one in self.all if one.id == id), None)

    def find(self, reference: str) -> Deployment:
        """A deployment by its id, or the live one of a name."""
        found = next((one for one in self.all if one.id == reference), None) or self.live_under(reference)
        if found is None:
            known = [*self.live, *(one.id for one in self.all)]
            guess = closest(reference, known)
            hint = f"Did you mean '{guess}'?" if guess else "List them with: evsys deployments list"
            raise DataError(f"there is no deployment {show(reference)}. {hint}")
        return found

    def before(self, deployment: Deployment) -> Deployment | None:
        """What a name falls back to: the deployment before it that nobody took back."""
        taken_back = {one.replaced for one in self.rollbacks}
        earlier = [one for one in self.of(deployment.name) if one.number < deployment.number]
        return next((one for one in reversed(earlier) if one.id not in taken_back), None)


def check_promotions() -> None:
    """Refuse to go on from a list of promotions that somebody changed."""
    if problems := broken_promotions():
        raise DataError(
            f"{problems[0]} The list of promotions was changed by hand. Restore {promotions_file()} from a copy, or "
            "move it away to begin anew."
        )
