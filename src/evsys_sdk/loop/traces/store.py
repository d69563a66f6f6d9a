"""The traces of a project: `.evsys/traces/<name>/traces.jsonl`, each once, without secrets and personal data.

    report = import_traces("support", [Path("spans.jsonl")])
    for trace in TraceStore("support").read(): ...

A line begins with the id, so that known traces are detected without parsing it. A killed import can be repeated: stored
traces are not added twice.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from ...errors import DataError, show
from ...paths import workspace_dir
from ...record.jsonl_file import JsonlFile, complete_lines
from ...record.layout import lock_beside
from ...record.lock import exclusive
from ...redact import is_suspicious, redact
from .feedback import join_feedback, read_feedback
from .privacy import Pseudonyms, is_perhaps_personal
from .reading import AUTO, ImportReport, Record, find_format, read_file, read_traces
from .trace import RewardRule, Trace, work_out_reward

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Refuse a name that cannot be a folder."""
    if not _NAME.fullmatch(name):
        raise DataError(f"{what} cannot be called {show(name)}. Use small letters, digits, '_' and '-', 64 at most.")
    return name


_TRACES = "traces.jsonl"
_ID = slice(7, 39)
"""Position of the id in a line, after `{"id":"`."""
_BYTES_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class TraceStore:
    """The traces of one store."""

    name: str
    file_name: str = _TRACES

    @property
    def folder(self) -> Path:
        return workspace_dir() / "traces" / check_name(self.name, "a store of traces")

    @property
    def file(self) -> Path:
        return self.folder / self.file_name

    def read(self) -> Iterator[dict[str, Any]]:
        """Every trace in the order of import, with its later feedback."""
        later = read_feedback(self.folder) if self.file_name == _TRACES else {}
        for number, line in complete_lines(self.file):
            try:
                trace: dict[str, Any] = from_json(line, cache_strings="keys")
            except ValueError:
                raise DataError(f"{self.file}:{number}: this line is damaged. Remove it, and import again.") from None
            yield join_feedback(trace, feedback) if later and (feedback := later.get(trace["id"])) else trace

    def ids(self) -> set[bytes]:
        """The ids of all traces."""
        return {line[_ID] for _, line in complete_lines(self.file)}

    def salt(self) -> bytes:
        """The salt of this store's pseudonyms, created on first use."""
        path = self.folder / "salt"
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_beside(path), str(path)):
            if not path.exists() or not path.stat().st_size:
                path.unlink(missing_ok=True)
                # Readable by its owner only, because the salt allows guessing the value of a pseudonym.
                with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                    file.write(secrets.token_bytes(16))
        return path.read_bytes()


def import_traces(
    name: str,
    files: Sequence[Path],
    *,
    format: str = AUTO,
    rules: Sequence[RewardRule] = (),
    most_bad: float = 0.01,
    keep_personal: bool = False,
) -> ImportReport:
    """Add the traces of files to a store; known traces are skipped."""
    opened = {path: find_format(path, format) for path in files}
    with LiveStore(name, rules=rules, keep_personal=keep_personal).open() as writer:
        report = writer.report
        for path, file_format in opened.items():
            writer.add(read_traces(read_file(path, report.spoil), file_format, report, where=str(path)), file_format)
    total = report.records + report.bad_records
    # Raised at the end, after storing the good records, so that importing the corrected files adds the rest.
    if report.bad_records > most_bad * total:
        reason, where = next(iter(report.reasons.items()))
        raise DataError(
            f"{report.bad_records} of {total} records could not be read, first {where}: {reason}. The {report.added} "
            f"traces that could be read are in '{name}'. Correct the files, name their --format, or allow more with "
            "--most-bad."
        )
    return report


class LiveStore:
    """A store to which records are added; safe to use from several threads and processes."""

    def __init__(
        self, name: str | TraceStore, *, rules: Sequence[RewardRule] = (), keep_personal: bool = False
    ) -> None:
        self.store = TraceStore(name) if isinstance(name, str) else name
        self.store.folder.mkdir(parents=True, exist_ok=True)
        self.rules = tuple(rules)
        self.salt = None if keep_personal else self.store.salt()
        """Salt of the pseudonyms; None keeps personal data."""
        self._lock = threading.Lock()
        self._known, self._end = set[bytes](), -1
        """The ids in the file, and its size when they were read."""

    def has(self, id: str) -> bool:
        """Whether a trace with this id is in the file."""
        with self._lock:
            if self.store.file.is_file() and (size := self.store.file.stat().st_size) != self._end:
                self._known, self._end = self.store.ids(), size
            return id.encode() in self._known

    def add(self, records: Iterable[Record], format: str) -> ImportReport:
        """Add the traces of records."""
        with self.open() as writer:
            writer.add(read_traces(enumerate(records, 1), format, writer.report, where="record"), format)
        return writer.report

    @contextmanager
    def open(self) -> Generator[_Writer]:
        """A writer to the file, under its lock."""
        with (
            self._lock,
            exclusive(lock_beside(self.store.file), str(self.store.file)),
            JsonlFile(self.store.file) as out,
        ):
            if self.store.file.stat().st_size != self._end:  # another process added traces
                self._known = self.store.ids()
            personal = None if self.salt is None else Pseudonyms(self.salt)
            writer = _Writer(out, self._known, self.rules, personal, ImportReport(self.store.name))
            self._end = -1  # until all lines are written, so that a failed write does not leave wrong ids
            yield writer
            self._end = self.store.file.stat().st_size


class _Writer:
    """Appends the lines of new traces to a file."""

    def __init__(
        self,
        out: JsonlFile,
        known: set[bytes],
        rules: tuple[RewardRule, ...],
        personal: Pseudonyms | None,
        report: ImportReport,
    ) -> None:
        self._out, self._known, self._rules, self._personal, self.report = out, known, rules, personal, report
        if personal is not None:
            report.redacted = personal.counts

    def add(self, traces: Iterable[Trace], source: str) -> None:
        """Append new traces in batches."""
        lines, size = list[bytes](), 0
        for trace in traces:
            id = trace.id_in(source)
            if (key := id.encode()) in self._known:
                self.report.duplicates += 1
                continue
            self._known.add(key)
            lines.append(line := self._to_line(id, trace, source))
            size += len(line)
            if size >= _BYTES_AT_ONCE:
                self._append(lines)
                lines, size = [], 0
        if lines:
            self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        self._out.append_line(b"".join(lines))
        self.report.added += len(lines)

    def _to_line(self, id: str, trace: Trace, source: str) -> bytes:
        """A line of the store: the id first, with the reward, without secrets and personal data."""
        reward, feedback = work_out_reward(trace.feedback, self._rules) if trace.feedback else (None, [])
        self.report.with_reward += reward is not None
        about = {
            "id": id,
            "time": trace.time,
            "source": source,
            "model": trace.model,
            "reward": reward,
            "usage": trace.usage,
        }
        content = {"conversation": trace.conversation, "feedback": feedback, "messages": trace.messages}
        # A quick check, because most lines hold none. `about` is not masked: its numbers look like phone numbers.
        if self._personal is not None and is_perhaps_personal(_encode(content).decode()):
            content = self._personal.mask(content)
        line = _encode({**about, **content})
        if is_suspicious(line.decode()):
            redacted = _encode({key: redact(value) for key, value in (about | content).items()})
            if redacted != line:
                self.report.redacted["SECRET"] = self.report.redacted.get("SECRET", 0) + 1
            return redacted
        return line


def _encode(line: dict[str, Any]) -> bytes:
    # JSON has no NaN, and other programs could not read such a line.
    return to_json(line, inf_nan_mode="null") + b"\n"
