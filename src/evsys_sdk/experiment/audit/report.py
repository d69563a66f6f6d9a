"""What an audit says: single checks with their evidence, and what follows from them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

type State = Literal["ok", "flagged", "remark", "unchecked"]
"""`flagged`: something that anyone can recompute contradicts the record. A `remark` changes no verdict."""


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One fact that was recomputed."""

    name: str
    state: State
    evidence: list[str] = field(default_factory=list[str])
    invalidates: bool = False
    """Whether nothing may be concluded while it is flagged."""
    of_record: bool = False
    """Whether the files of the record alone decide it, so that it is known when the conclusion is drawn."""

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence[0]}"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "evidence": self.evidence, "invalidates": self.invalidates}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found."""

    path: Path
    checks: list[AuditCheck] = field(default_factory=list[AuditCheck])

    @property
    def flags(self) -> list[AuditCheck]:
        return [check for check in self.checks if check.state == "flagged"]

    @property
    def remarks(self) -> list[AuditCheck]:
        return [check for check in self.checks if check.state == "remark"]

    @property
    def recorded(self) -> AuditReport:
        """What the record alone decides; the same for `quick` and for a whole audit."""
        return AuditReport(self.path, [check for check in self.checks if check.of_record])

    @property
    def clean(self) -> bool:
        return not self.flags

    @property
    def invalid(self) -> str | None:
        """Why nothing may be concluded, in one sentence; None where no flag forbids it."""
        return next((str(check) for check in self.flags if check.invalidates), None)

    def to_dict(self) -> dict[str, Any]:
        checks = [check.to_dict() for check in self.checks]
        return {"path": str(self.path), "clean": self.clean, "invalid": self.invalid, "checks": checks}
