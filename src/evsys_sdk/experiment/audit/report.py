"""The report of an audit: its checks with their evidence, and the overall result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

type State = Literal["ok", "flagged", "remark", "unchecked"]
"""`flagged`: a recomputed value contradicts the record. A `remark` does not affect the verdict."""


class Unchecked(Exception):
    """Raised with the reason why a fact cannot be checked on this machine."""


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """The check of one fact."""

    name: str
    state: State
    evidence: list[str] = field(default_factory=list[str])
    invalidates: bool = False
    """Whether the flag invalidates the conclusion."""
    of_record: bool = False
    """Whether the check depends on the files of the record alone, so that the conclusion can use it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence[0]}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The checks of an audit."""

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
        """The checks of the record alone; they are the same for a quick and a full audit."""
        return AuditReport(self.path, [check for check in self.checks if check.of_record])

    @property
    def clean(self) -> bool:
        return not self.flags

    @property
    def invalid(self) -> str | None:
        """The first flag that invalidates the conclusion, as text; None if there is none."""
        return next((str(check) for check in self.flags if check.invalidates), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `evsys audit --json`."""
        checks = [asdict(check) for check in self.checks]
        return {"path": str(self.path), "clean": self.clean, "invalid": self.invalid, "checks": checks}
