"""What an audit says: single checks with their evidence, and what follows from them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

type State = Literal["ok", "flagged", "remark", "unchecked"]
"""`flagged`: something that anyone can recompute contradicts the record. A `remark` changes no verdict."""


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One thing that was looked at."""

    name: str
    state: State
    evidence: list[str] = field(default_factory=list[str])
    invalidates: bool = False
    """Whether nothing may be concluded while it is flagged."""
    of_record: bool = False
    """Whether the files of the record alone decide it, so that it is known when the conclusion is drawn."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "evidence": self.evidence, "invalidates": self.invalidates}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found."""

    path: Path
    checks: list[AuditCheck]
    contradiction: str | None
    """Why nothing may be concluded, by the files of the record alone."""

    @property
    def flags(self) -> list[AuditCheck]:
        return [check for check in self.checks if check.state == "flagged"]

    @property
    def remarks(self) -> list[AuditCheck]:
        return [check for check in self.checks if check.state == "remark"]

    @property
    def recorded_flags(self) -> list[str]:
        """What is flagged by the record alone, one line for each check; the same for `quick` and for a whole audit."""
        return [f"{check.name}: {check.evidence[0]}" for check in self.flags if check.of_record]

    @property
    def clean(self) -> bool:
        return not self.flags

    @property
    def invalid(self) -> str | None:
        """Why nothing may be concluded, in one sentence; None where no flag forbids it."""
        return find_contradiction(self.checks)

    def to_dict(self) -> dict[str, Any]:
        checks = [check.to_dict() for check in self.checks]
        return {"path": str(self.path), "clean": self.clean, "invalid": self.invalid, "checks": checks}


def find_contradiction(checks: Sequence[AuditCheck]) -> str | None:
    """Why nothing may be concluded, in one sentence; None where no flag forbids it."""
    against = [check for check in checks if check.state == "flagged" and check.invalidates]
    return f"{against[0].name}: {against[0].evidence[0]}" if against else None
