"""Store feedback on answers, from the server or from files.

    log = FeedbackLog(LiveStore("support"))
    log.add([GivenFeedback(response_id="chatcmpl-...", value="up")], via="file").unknown

Only feedback with the id of a stored answer is kept. The server draws the ids of its answers at random, so that they
cannot be guessed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from ...errors import DataError
from ...record.jsonl_file import JsonlFile
from ...record.layout import lock_beside
from ...record.lock import exclusive
from ...redact import redact
from .feedback import CORRECTION, FILE, GivenFeedback, Joined, read_feedback
from .privacy import Pseudonyms
from .reading import FORMATS, ImportReport, read_file
from .rounds import find_used, read_rounds, rounds_file
from .store import LiveStore, TraceStore
from .trace import RewardRule, Trace

_MOST_NAMES: Final = 20
"""Limit of feedback names per answer, against flooding."""
_MOST_TIMES: Final = 50
"""Limit of changes per answer and name."""
_SHOWN: Final = 10
_ALIASES: Final = {"id": "response_id", "trace_id": "response_id", "score": "value", "feedback": "value"}
"""Alternative names of fields in files."""


@dataclass(slots=True)
class FeedbackReport:
    """The result of storing feedback."""

    added: int = 0
    changed: int = 0
    """Number of added lines that replace earlier feedback."""
    known: int = 0
    """Number of exact repetitions, which are not stored."""
    late: int = 0
    """Number of added lines about answers of earlier rounds, whose data do not change."""
    crowded: int = 0
    """Number of rejected lines, because the answer has the maximum of feedback."""
    unknown: list[str] = field(default_factory=list[str])
    """Ids without a stored answer."""
    bad: int = 0
    reasons: dict[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class FeedbackLog:
    """Adds feedback to a store; safe to use from several threads, and next to other processes."""

    def __init__(self, live: LiveStore, *, rules: Sequence[RewardRule] = ()) -> None:
        self._live, self._rules = live, tuple(rules)
        self._file = live.store.folder / FILE
        self._lock = threading.Lock()
        self._by_trace: Joined = {}
        self._end = -1
        self._used, self._rounds = set[str](), -1

    def add(self, entries: Iterable[GivenFeedback], *, via: str) -> FeedbackReport:
        """Store new feedback on known answers."""
        report = FeedbackReport()
        with self._lock, exclusive(lock_beside(self._file), str(self._file)), JsonlFile(self._file) as out:
            # Refreshed under the lock, because other processes may have added lines.
            self._refresh()
            for entry in entries:
                trace = self._find(entry.response_id)
                if trace is None:
                    report.unknown.append(entry.response_id)
                else:
                    self._add(out, entry, trace, via, report)
            self._end = self._file.stat().st_size
        return report

    def _add(self, out: JsonlFile, entry: GivenFeedback, trace: str, via: str, report: FeedbackReport) -> None:
        line = self._clean(entry.to_line(trace, self._rules))
        stored = self._by_trace.setdefault(trace, {})
        name = line["name"]
        before = stored.get(name)
        if before is not None and all(before.get(key) == line.get(key) for key in ("value", "comment", CORRECTION)):
            report.known += 1
        # `times` is bound wherever the first half is false, so that the branch below always has it.
        elif (before is None and len(stored) >= _MOST_NAMES) or (
            times := (before or {}).get("times", 0)
        ) >= _MOST_TIMES:
            report.crowded += 1
        else:
            line |= {"time": time.time(), "via": via, "times": times + 1}
            out.append(line)
            stored[name] = line
            report.added += 1
            report.changed += before is not None
            report.late += trace in self._used

    def _find(self, id: str) -> str | None:
        """The trace of an answer, by its id at the producer; None if it is unknown."""
        # The key of a trace is a hash of its format and its id. Feedback has only the id, so every format is tried.
        names = (Trace(id, []).id_in(source) for source in FORMATS)
        return next((name for name in names if self._live.has(name)), None)

    def _clean(self, line: dict[str, Any]) -> dict[str, Any]:
        salt = self._live.salt
        # Masked like the traces, because corrections are free text.
        texts = {key: line[key] for key in ("name", "value", "comment", CORRECTION) if isinstance(line.get(key), str)}
        return redact(line if salt is None else {**line, **Pseudonyms(salt).mask(texts)})

    def _refresh(self) -> None:
        """Read lines that other processes have added."""
        # These files only grow, so another size means new lines.
        if self._file.stat().st_size != self._end:
            self._by_trace = read_feedback(self._file.parent)
        rounds = rounds_file(self._live.store.name)
        if (size := rounds.stat().st_size if rounds.is_file() else 0) != self._rounds:
            self._used, self._rounds = find_used(read_rounds(self._live.store.name)), size


def import_feedback(
    name: str, files: Sequence[Path], *, rules: Sequence[RewardRule] = (), keep_personal: bool = False
) -> FeedbackReport:
    """Add the feedback in files of JSONL or JSON to a store, each once."""
    if not TraceStore(name).file.is_file():
        raise DataError(f"there are no traces in '{name}'. Import them before their feedback.")
    live = LiveStore(name, keep_personal=keep_personal)
    read_report, entries = ImportReport(name), list[GivenFeedback]()
    for path in files:
        for number, record in read_file(path, read_report.spoil):
            try:
                entries.append(GivenFeedback.model_validate(_rename(record)))
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(str(part) for part in first["loc"]) or "the record"
                read_report.spoil(f"{path}:{number}", f"{place}: {first['msg']}")
    report = FeedbackLog(live, rules=rules).add(entries, via="file")
    report.bad, report.reasons = read_report.bad_records, read_report.reasons
    return report


def _rename(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a file with our field names."""
    renamed = {key: value for key, value in record.items() if value is not None}
    for alias, name in _ALIASES.items():
        if alias in renamed and name not in renamed:
            renamed[name] = renamed.pop(alias)
    return renamed


def show_unknown(report: FeedbackReport) -> str:
    """Some of the unknown ids, as text."""
    shown = ", ".join(map(json.dumps, report.unknown[:_SHOWN]))
    return shown + (", ..." if len(report.unknown) > _SHOWN else "")
