"""The input of the facts of an audit: one record, read once, and the `Rechecker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import EvsysError
from ...record.events import Event, Kind
from ...record.flat_config import flatten_config
from ...record.reader import ExperimentRecord
from ...record.runs import RunRecord
from .answers import AnswerBook
from .recheck import Rechecker
from .report import AuditCheck, AuditReport, Unchecked


@dataclass
class Case:
    """One experiment under audit."""

    record: ExperimentRecord
    recheck: Rechecker
    before_conclusion: bool
    find_anchors: Callable[[], tuple[int, list[str]]]
    report: AuditReport | None = None
    """The checks of the record's files, once they are done."""

    def __post_init__(self) -> None:
        self.path = self.record.folder
        self.events: list[Event] = self.record.events
        self.is_chained = bool(self.events) and all(event.format >= 2 for event in self.events)
        self.runs: list[RunRecord] = self.record.runs_on_disk
        self.config: dict[str, Any] = self.record.config or {}

    def of_kind(self, *kinds: Kind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @cached_property
    def ends(self) -> dict[str, Event]:
        """Arm -> its last `ARM_ENDED` event."""
        return {event.text("arm"): event for event in self.of_kind(Kind.ARM_ENDED)}

    @cached_property
    def busy(self) -> set[str]:
        """Arms that have started and not ended since; their files may change."""
        latest = {event.text("arm"): event.kind for event in self.of_kind(Kind.ARM_STARTED, Kind.ARM_ENDED)}
        return {arm for arm, kind in latest.items() if kind == Kind.ARM_STARTED}

    @cached_property
    def answers(self) -> AnswerBook:
        with_agent = any(path.endswith(("agent_import_path", "agent.kind")) for path in flatten_config(self.config))
        return AnswerBook(self.runs, self.recheck, self.record.shared_answers, agent_rewards=with_agent)


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about the record that the audit checks."""

    name: str
    find: Callable[[Case], Iterable[str]]
    """Function that yields the contradictions."""
    invalidates: bool = True
    """Whether a contradiction invalidates the conclusion."""
    is_remark: bool = False
    """Whether a contradiction is a remark, which does not affect the verdict."""

    def check(self, case: Case, *, of_record: bool = False) -> AuditCheck:
        """Check the fact; an unreadable record is a finding and does not end the audit."""
        try:
            found = list(self.find(case))
        except Unchecked as why:
            return AuditCheck(self.name, "unchecked", [str(why)], of_record=of_record)
        except (EvsysError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"the record could not be read: {type(error).__name__}: {error}"
            return AuditCheck(self.name, "flagged", [why], True, of_record)
        state = "ok" if not found else "remark" if self.is_remark else "flagged"
        return AuditCheck(self.name, state, found, self.invalidates and state == "flagged", of_record)
