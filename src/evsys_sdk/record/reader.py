"""The reader of an experiment's record.

    record = ExperimentRecord.open(folder)
    record.status, record.spend, record.notes, record.decisions
    for run in record.runs:
        run.status, run.metrics, run.spend, run.scores, run.checkpoints, run.logged

Missing or damaged files give empty values, so that history shows what is left. Each file is read once, on first use;
to see later changes, make a new `ExperimentRecord`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..redact import without_secrets
from .approvals import AWAITED, read_approvals
from .events import FORMAT, Event, Kind, load_events, read_events
from .flat_config import Settings, settings_of
from .layout import ExperimentFiles, RunFiles
from .ledger import Tally, read_tally
from .lock import last_owner, lock_owner
from .runs import PENDING, STARTED, RunRecord, add_spend, config_runs, is_experiment, plain_spend, read_arms
from .values import UNFINISHED, Note, Object, items, load_object, mtime, part, read_lines, read_object, subfolders, text

_QUIET_S = 900
"""Seconds without a change after which an experiment on another machine counts as dead."""
_MOST_FOLDERS = 64
"""Arms whose files are checked for recent activity."""


class ExperimentRecord:
    """The record of one attempt of an experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = ExperimentFiles(folder)

    @classmethod
    def open(cls, folder: Path) -> ExperimentRecord:
        """The record in a folder; refuses other folders."""
        record = cls(folder)
        if not record.is_experiment:
            raise DataError(f"{folder}: not the record of an experiment. List experiments with: evsys history")
        return record

    # Config and start

    @cached_property
    def config(self) -> Object | None:
        """The resolved config; None if it is missing or damaged."""
        return read_object(ExperimentFiles.config.below(self.folder))

    @cached_property
    def clean_config(self) -> Object:
        """The config without secrets, which earlier versions may have written into it."""
        return without_secrets(self.config or {})

    @cached_property
    def settings(self) -> dict[str, Settings]:
        """The settings of each run, by its name."""
        return {text(run.get("name")): settings_of(run) for run in config_runs(self.clean_config)}

    def load(self) -> Object:
        """Read journal and config strictly, for a decision that depends on them; returns the config."""
        self.events = load_events(self.folder)  # fills the cache of `events`, which reads an error as an empty list
        if not self.files.config.is_file():
            name = ExperimentFiles.config.name
            raise DataError(
                f"{self.folder}: this is not the folder of an experiment: it has no {name}. Name another one."
            )
        return load_object(self.files.config)

    @property
    def is_experiment(self) -> bool:
        return is_experiment(self.folder, self.config, self.events)

    @cached_property
    def events(self) -> list[Event]:
        """All events, oldest first."""
        try:
            return load_events(self.folder)
        except OSError:
            return []

    @cached_property
    def _by_kind(self) -> dict[str, list[Event]]:
        by_kind: dict[str, list[Event]] = {}
        for event in self.events:
            by_kind.setdefault(event.kind, []).append(event)
        return by_kind

    def _of_kind(self, kind: Kind) -> list[Event]:
        return self._by_kind.get(kind, [])

    @cached_property
    def start(self) -> Event:
        """The first start; an empty event if the journal has none."""
        return next(iter(self._of_kind(Kind.STARTED)), Event(Kind.STARTED))

    @property
    def experiment_id(self) -> str | None:
        """The id from its first start; None before that."""
        return self.start.text("experiment_id") or None

    @property
    def format(self) -> int:
        """The highest format version of its events."""
        return max((event.format for event in self.events), default=FORMAT)

    # Status

    @cached_property
    def _last_turn(self) -> Event:
        """The last start, resume or end."""
        turns = (Kind.STARTED, Kind.RESUMED, Kind.ENDED)
        return next((event for event in reversed(self.events) if event.kind in turns), Event(""))

    @cached_property
    def ending(self) -> str:
        """How its last attempt ended (completed, failed, interrupted, budget), or `unfinished`."""
        if self._last_turn.kind == Kind.ENDED:
            return self._last_turn.text("status") or "completed"
        if self._last_turn.kind:
            return UNFINISHED
        states = {run.status for run in self.runs}  # a record without a journal
        if not states or states & {PENDING, STARTED}:
            return UNFINISHED
        return "interrupted" if "cancelled" in states else "failed" if "failed" in states else "completed"

    @property
    def is_finished(self) -> bool:
        """Whether it ended by itself, not by a kill, an interrupt or its budget."""
        return self._last_turn.kind == Kind.ENDED and self._last_turn.get("status") in ("completed", "failed")

    @property
    def status(self) -> str:
        """`running`, its ending, or `killed` if it neither runs nor has ended."""
        if self.is_running:
            return "running"
        return "killed" if self.ending == UNFINISHED else self.ending

    @property
    def is_running(self) -> bool:
        """Whether a process holds the lock of its folder.

        The lock of a process on another machine cannot be checked here. An unfinished experiment then counts as running
        if its folder has changed recently.
        """
        import socket  # takes a few milliseconds, and most experiments have ended

        last = last_owner(self.folder)
        if last is not None and last.get("host") == socket.gethostname():
            return lock_owner(self.folder) is not None
        return self.ending == UNFINISHED and time.time() - self.last_activity < _QUIET_S

    @property
    def owner(self) -> dict[str, Any]:
        """`pid` and `host` of the process that runs it; empty if none does."""
        return (last_owner(self.folder) or {}) if self.is_running else {}

    @property
    def last_activity(self) -> float:
        """The latest modification time of its main files."""
        times = [mtime(self.files.journal), mtime(self.folder)]
        for name in subfolders(self.folder)[:_MOST_FOLDERS]:
            files = RunFiles(self.folder / name)
            times += [mtime(files.folder), mtime(files.logs.metrics), mtime(files.checkpoints)]
        return max((at for at in times if at is not None), default=0.0)

    @property
    def began(self) -> float | None:
        """The time of its first start."""
        starts = self.runs[0].starts if self.runs and self.start.time is None else []
        return self.start.time or next(iter(starts), None) or mtime(self.files.config)

    @property
    def ended(self) -> float | None:
        """The time of its last end; None if it is unfinished."""
        if self.ending == UNFINISHED:
            return None
        if self._last_turn.kind == Kind.ENDED:
            return self._last_turn.time
        return max((mtime(run.files.result) or 0.0 for run in self.runs), default=0.0) or None

    # Arms and spend

    @cached_property
    def runs(self) -> list[RunRecord]:
        """Every arm, from the journal; folders are read only for arms without an end in the journal."""
        return read_arms(self.folder, self.config or {}, self.events)

    @cached_property
    def runs_on_disk(self) -> list[RunRecord]:
        """Every arm, with the result in its folder."""
        return read_arms(self.folder, self.config or {}, self.events, from_files=True)

    @cached_property
    def tally(self) -> Tally:
        """The sum of `spend.jsonl`."""
        return read_tally(self.folder)

    @cached_property
    def spend(self) -> dict[str, float]:
        """The spend of all starts; without `usd` if a part has no price."""
        if self._last_turn.kind == Kind.ENDED and (recorded := self._last_turn.part("spend")):
            return plain_spend(recorded)  # the sum of the ledger, which need not be read then
        if total := self.tally.total():
            return plain_spend(total.to_dict())
        return add_spend(*(run.spend for run in self.runs))

    @property
    def shared_answers(self) -> dict[str, list[Object]]:
        """Model -> its answers that all arms share: the untrained model, or one of another provider."""
        answers: dict[str, list[Object]] = {}
        for path in self.files.all_baselines():
            lines = list(read_lines(path))
            model = next((text(part(line, "scoring").get("model")) for line in lines if "scoring" in line), "")
            answers.setdefault(model, []).extend(line for line in lines if "scoring" not in line)
        return answers

    def spend_of(self, run: RunRecord) -> dict[str, float]:
        """The spend of one arm, over all starts; that of a killed arm is in the ledger only."""
        if run.has_ended and run.spend:
            return run.spend
        return plain_spend(self.tally.of(run.name).to_dict()) if run.name in self.tally.arms() else run.spend

    # Notes, marks and decisions

    @property
    def notes(self) -> list[Note]:
        """The notes about it, oldest first."""
        events = [event for event in self._of_kind(Kind.NOTE) if event.text("text")]
        return [Note(event.text("text"), event.time, event.text("author")) for event in events]

    @property
    def tags(self) -> list[str] | None:
        """The tags that were set after its start; None if those of its config hold."""
        tagged = self._of_kind(Kind.TAGGED)
        return [tag for tag in items(tagged[-1].get("tags")) if isinstance(tag, str)] if tagged else None

    @property
    def invalidated(self) -> str:
        """Why it is excluded; empty if it is not."""
        if Kind.INVALIDATED not in self._by_kind:
            return ""
        marks = [event for event in self.events if event.kind in (Kind.INVALIDATED, Kind.REINSTATED)]
        if marks[-1].kind == Kind.REINSTATED:
            return ""
        return marks[-1].text("reason") or "no reason was given"

    @property
    def flags(self) -> list[str]:
        """The flags of its last audit; empty without flags or audit."""
        audited = self._of_kind(Kind.AUDITED)
        return [flag for flag in items(audited[-1].get("flags")) if isinstance(flag, str)] if audited else []

    @property
    def near_matches(self) -> list[str]:
        """Sentences about training rows that resemble evaluation tasks, from before the first step."""
        return [match for match in items(self.start.get("near_matches")) if isinstance(match, str)]

    @property
    def awaits_approval(self) -> bool:
        """Whether it waits for an approval before it starts."""
        return any(approval.state == AWAITED for approval in read_approvals(self.events).values())

    @property
    def budget_stop(self) -> str:
        """Why the budget stopped it since its last start; empty if it did not."""
        reason = ""
        for event in self.events:
            if event.kind in (Kind.STARTED, Kind.RESUMED):
                reason = ""
            elif event.kind == Kind.BUDGET_STOP:
                reason = str(event.get("reason") or event.get("limit") or "the budget was used up")
        return reason

    @property
    def decisions(self) -> list[Event]:
        """The decisions of search, interim analyses, budget and retries, in order."""
        kinds = (Kind.SEARCH_DECISION, Kind.LOOKED, Kind.BUDGET_STOP, Kind.ARM_RETRIED)
        return [event for event in self.events if event.kind in kinds]

    @property
    def search_decisions(self) -> list[Object]:
        """The decisions of a search, in order."""
        return [event.payload for event in self._of_kind(Kind.SEARCH_DECISION)]

    @property
    def looks(self) -> list[Object]:
        """The interim analyses, in order."""
        return [event.payload for event in self._of_kind(Kind.LOOKED)]

    @cached_property
    def conclusion(self) -> Object:
        """The conclusion; empty if there is none, or its file is damaged."""
        content = read_object(ExperimentFiles.conclusion.below(self.folder)) or {}
        return content if text(content.get("verdict")) else {}


def experiment_id(folder: Path) -> str | None:
    """The id of the experiment in a folder; None before its first start."""
    with suppress(OSError):
        for event in read_events(folder):  # stops at the first match, because a journal may have thousands of events
            if event.kind == Kind.STARTED:
                return event.text("experiment_id") or None
    return None
