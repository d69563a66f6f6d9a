"""All deployments of a project and the live deployment of each name, read from the list of promotions.

A name (`production`, `canary`) has numbered deployments: `production.1`, `production.2`. The deployment of the latest
promotion or rollback is live. The list is the only store of this state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError, show, suggest
from ..record.events import Event, Kind
from ..record.project_files.journals import broken_promotions, promotions_file, read_promotions
from ..record.values import Object, items, number, text


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment: the shipped weights, their source and their files."""

    id: str
    name: str
    number: int
    kind: str
    location: str
    source: Object
    files: dict[str, str] = field(default_factory=dict[str, str])
    """File -> sha256 at the time of shipping."""
    params: Object = field(default_factory=dict[str, Any])
    facts: Object = field(default_factory=dict[str, Any])
    gate: str = ""
    """Id of the gate's decision that passed it; empty if no gate was required."""
    time: float | None = None
    flags: tuple[str, ...] = ()
    """Names of the audit checks that were flagged when it was shipped."""

    @classmethod
    def of(cls, event: Event) -> Deployment:
        count = event.get("number")
        return cls(
            event.text("deployment"),
            event.text("name"),
            count if isinstance(count, int) else 0,
            event.text("deployer"),
            event.text("location"),
            event.part("source"),
            {name: text(value) for name, value in event.part("files").items()},
            event.part("params"),
            event.part("facts"),
            event.text("gate"),
            event.time,
            tuple(map(text, items(event.part("audit").get("flags")))),
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
            "flags": list(self.flags),
        }


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback of a name to an earlier deployment, or to none."""

    name: str
    deployment: str
    """Id of the deployment that became live; empty if none did."""
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
    once_live: dict[str, float] = field(default_factory=dict[str, float])
    """Id of each deployment that was ever live -> time at which it last became live."""

    @classmethod
    def read(cls, start: Path | None = None) -> Deployments:
        """The deployments in the list of promotions."""
        return cls._from_events(read_promotions(start))

    @classmethod
    def _from_events(cls, events: Iterable[Event]) -> Deployments:
        deployments, rollbacks = list[Deployment](), list[Rollback]()
        live, once_live = dict[str, str](), dict[str, float]()
        for event in events:
            if event.kind == Kind.DEPLOYED:
                deployments.append(Deployment.of(event))
            if event.kind in (Kind.DEPLOYED, Kind.STAGED):
                name, id, share = event.text("name"), event.text("deployment"), number(event.get("share"))
                # In earlier versions a deployment could serve a share of the requests, or shadow them, before going
                # live.
                if "shadow" not in event.payload and (share is None or share >= 1):
                    live[name] = id
                    once_live[id] = event.time or 0.0
            elif event.kind == Kind.ROLLED_BACK:
                name, to, replaced, reason = (event.text(key) for key in ("name", "deployment", "replaced", "reason"))
                rollbacks.append(Rollback(name, to, replaced, reason, event.time))
                # A rollback of a deployment with a share of the requests names the live deployment, which stays live.
                if to and to != live.get(name):
                    once_live[to] = event.time or 0.0
                live[name] = to
        # An empty id: the name was taken down and has no live deployment.
        now = {name: id for name, id in live.items() if id}
        return cls(deployments, rollbacks, now, once_live)

    def of(self, name: str) -> list[Deployment]:
        """The deployments of a name, oldest first."""
        return [entry for entry in self.all if entry.name == name]

    def live_under(self, name: str) -> Deployment | None:
        """The live deployment of a name, or None."""
        id = self.live.get(name)
        return next((entry for entry in self.all if entry.id == id), None)

    def find(self, reference: str) -> Deployment:
        """The deployment with this id, or the live deployment of this name."""
        deployment = next((entry for entry in self.all if entry.id == reference), None) or self.live_under(reference)
        if deployment is None:
            names = [*self.live, *(entry.id for entry in self.all)]
            hint = suggest(reference, names) or "List them with: evsys deployments list"
            raise DataError(f"there is no deployment {show(reference)}. {hint}")
        return deployment

    def before(self, deployment: Deployment) -> Deployment | None:
        """The latest earlier deployment of the name that was live and was never rolled back; None if there is none."""
        rolled_back = {rollback.replaced for rollback in self.rollbacks}
        earlier = [entry for entry in self.of(deployment.name) if entry.number < deployment.number]
        fit = self.once_live.keys() - rolled_back
        return next((entry for entry in reversed(earlier) if entry.id in fit), None)


def check_promotions() -> None:
    """Raise if the list of promotions was changed by hand."""
    if problems := broken_promotions():
        raise DataError(
            f"{problems[0]} The list of promotions was changed by hand. Restore {promotions_file()} from a copy, or "
            "move it away to begin anew."
        )
