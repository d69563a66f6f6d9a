"""The one reader: everything that the record of an experiment answers, from its folder.

    record = ExperimentRecord.open(folder)
    record.status, record.spend, record.notes, record.decisions
    for run in record.runs:
        run.status, run.metrics, run.spend, run.scores, run.checkpoints, run.logged

A folder is read as it is: what is missing or damaged is an empty answer, so that history shows what is left. Each
file is read once, when its content is first asked for; a new look is a new `ExperimentRecord`.
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
from .runs import PENDING, STARTED, RunRecord, add_spend, config_runs, is_experiment, plain_spend, tell_runs
from .values import UNFINISHED, Note, Object, items, load_object, mtime, part, read_lines, read_object, subfolders, text

_QUIET_S = 900
"""Longest time without any change after which a run on another machine is still taken to be alive."""
_MOST_FOLDERS = 64
"""Arms whose files are looked at to see whether anything continues; of more, some will do."""


class ExperimentRecord:
    """The record of one attempt at an experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = ExperimentFiles(folder)

    @classmethod
    def open(cls, folder: Path) -> ExperimentRecord:
        """The record in a folder; a folder that is something else is refused."""
        record = cls(folder)
        if not record.is_experiment:
            raise DataError(f"{folder}: this is not the record of an experiment. List them with: evsys history")
        return record

    # What it is

    @cached_property
    def config(self) -> Object | None:
        """The resolved config; None where it is missing or damaged."""
        return read_object(ExperimentFiles.config.below(self.folder))

    @cached_property
    def clean_config(self) -> Object:
        """The config without the secrets that an earlier version may have written into it."""
        return without_secrets(self.config or {})

    @cached_property
    def settings(self) -> dict[str, Settings]:
        """The settings of each run, by its name."""
        return {text(run.get("name")): settings_of(run) for run in config_runs(self.clean_config)}

    def load(self) -> Object:
        """Read journal and config for a decision that hangs on them, and return the config; damage is an error."""
        self.events = load_events(self.folder)  # in place of what `events` would keep, where an error is an empty list
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
        """Everything that happened, oldest first."""
        try:
            return load_events(self.folder)
        except OSError:
            return []

    @cached_property
    def start(self) -> Event:
        """How it began; an empty event where the journal does not say."""
        return next((event for event in self.events if event.kind == Kind.STARTED), Event(Kind.STARTED))

    @property
    def experiment_id(self) -> str | None:
        """The id it was given when it first started; None before that."""
        return self.start.text("experiment_id") or None

    @property
    def format(self) -> int:
        """The latest version that wrote to it."""
        return max((event.format for event in self.events), default=FORMAT)

    # How it is getting on

    @cached_property
    def _last_turn(self) -> Event:
        """The last time that it began, continued or ended."""
        turns = (Kind.STARTED, Kind.RESUMED, Kind.ENDED)
        return next((event for event in reversed(self.events) if event.kind in turns), Event(""))

    @cached_property
    def ending(self) -> str:
        """How its last attempt ended (completed, failed, interrupted, budget), or `unfinished`."""
        if self._last_turn.kind == Kind.ENDED:
            return self._last_turn.text("status") or "completed"
        if self._last_turn.kind:
            return UNFINISHED
        states = {run.status for run in self.runs}  # a version that had no journal
        if not states or states & {PENDING, STARTED}:
            return UNFINISHED
        return "interrupted" if "cancelled" in states else "failed" if "failed" in states else "completed"

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end, rather than being killed, interrupted or stopped by its budget."""
        return self._last_turn.kind == Kind.ENDED and self._last_turn.get("status") in ("completed", "failed")

    @property
    def status(self) -> str:
        """`running`, how it ended, or `killed`: it neither runs nor has ended."""
        if self.is_running:
            return "running"
        return "killed" if self.ending == UNFINISHED else self.ending

    @property
    def is_running(self) -> bool:
        """Whether a process works on it: it holds the lock of the folder.

        A lock that was last held on another machine tells nothing here. An experiment without an end is then judged
        by how long ago anything in its folder changed.
        """
        import socket  # takes a few milliseconds, and most histories have nothing unfinished

        last = last_owner(self.folder)
        if last is not None and last.get("host") == socket.gethostname():
            return lock_owner(self.folder) is not None
        return self.ending == UNFINISHED and time.time() - self.last_activity < _QUIET_S

    @property
    def owner(self) -> dict[str, Any]:
        """`pid` and `host` of who works on it; nothing when no one does."""
        return (last_owner(self.folder) or {}) if self.is_running else {}

    @property
    def last_activity(self) -> float:
        """When something in its folder last changed, as far as a quick look can tell."""
        seen = [mtime(self.files.journal), mtime(self.folder)]
        for name in subfolders(self.folder)[:_MOST_FOLDERS]:
            files = RunFiles(self.folder / name)
            seen += [mtime(files.folder), mtime(files.logs.metrics), mtime(files.checkpoints)]
        return max((at for at in seen if at is not None), default=0.0)

    @property
    def began(self) -> float | None:
        """When it was started first."""
        starts = self.runs[0].starts if self.runs and self.start.time is None else []
        return self.start.time or next(iter(starts), None) or mtime(self.files.config)

    @property
    def ended(self) -> float | None:
        """When its last attempt ended; None while it has not."""
        if self.ending == UNFINISHED:
            return None
        if self._last_turn.kind == Kind.ENDED:
            return self._last_turn.time
        return max((mtime(run.files.result) or 0.0 for run in self.runs), default=0.0) or None

    # Its arms, and what they took

    @cached_property
    def runs(self) -> list[RunRecord]:
        """Every arm, as the journal tells it; folders are looked at only for arms that it tells no end of."""
        return tell_runs(self.folder, self.config or {}, self.events)

    @cached_property
    def runs_on_disk(self) -> list[RunRecord]:
        """Every arm, with the result that is in its folder."""
        return tell_runs(self.folder, self.config or {}, self.events, from_files=True)

    @cached_property
    def tally(self) -> Tally:
        """What `spend.jsonl` adds up to: repeated steps twice, for they were paid for twice; a key once."""
        return read_tally(self.folder)

    @cached_property
    def spend(self) -> dict[str, float]:
        """What it took, by all attempts; without `usd` where some of it has no price."""
        if self._last_turn.kind == Kind.ENDED and (stated := self._last_turn.part("spend")):
            return plain_spend(stated)  # the ledger's own sum, so that the ledger need not be read
        if total := self.tally.total():
            return plain_spend(total.to_dict())
        return add_spend(*(run.spend for run in self.runs))

    @property
    def shared_answers(self) -> dict[str, list[Object]]:
        """The answers that arms share, by the model that gave them: before training, or of another provider."""
        found: dict[str, list[Object]] = {}
        for path in self.files.all_baselines():
            lines = list(read_lines(path))
            model = next((text(part(line, "scoring").get("model")) for line in lines if "scoring" in line), "")
            found.setdefault(model, []).extend(line for line in lines if "scoring" not in line)
        return found

    def spend_of(self, run: RunRecord) -> dict[str, float]:
        """What one arm took, by all of its attempts; that of a killed one is known to the ledger alone."""
        if run.has_ended and run.spend:
            return run.spend
        return plain_spend(self.tally.of(run.name).to_dict()) if run.name in self.tally.arms() else run.spend

    # What was said and decided

    @property
    def notes(self) -> list[Note]:
        """What was written down about it, oldest first."""
        noted = [event for event in self.events if event.kind == Kind.NOTE and event.text("text")]
        return [Note(event.text("text"), event.time, event.text("author")) for event in noted]

    @property
    def tags(self) -> list[str] | None:
        """The tags that it was given afterwards; None where those of its config stand."""
        tagged = next((event for event in reversed(self.events) if event.kind == Kind.TAGGED), None)
        return None if tagged is None else [tag for tag in items(tagged.get("tags")) if isinstance(tag, str)]

    @property
    def invalidated(self) -> str:
        """Why it must not be believed; empty when no one said so, or it was taken back."""
        marks = [event for event in self.events if event.kind in (Kind.INVALIDATED, Kind.REINSTATED)]
        if not marks or marks[-1].kind == Kind.REINSTATED:
            return ""
        return marks[-1].text("reason") or "no reason was given"

    @property
    def flags(self) -> list[str]:
        """What its last audit found against it; empty where that found nothing, or there was none."""
        audited = next((event for event in reversed(self.events) if event.kind == Kind.AUDITED), Event(Kind.AUDITED))
        return [flag for flag in items(audited.get("flags")) if isinstance(flag, str)]

    @property
    def near_matches(self) -> list[str]:
        """Sentences about training rows that resemble evaluation tasks, as they were found before the first step."""
        return [one for one in items(self.start.get("near_matches")) if isinstance(one, str)]

    @property
    def awaits_approval(self) -> bool:
        """Whether it waits for an approval before it starts."""
        return any(one.state == AWAITED for one in read_approvals(self.events).values())

    @property
    def budget_stop(self) -> str:
        """Why its last attempt was stopped by the budget; empty when it was not."""
        reason = ""
        for event in self.events:
            if event.kind in (Kind.STARTED, Kind.RESUMED):
                reason = ""
            elif event.kind == Kind.BUDGET_STOP:
                reason = str(event.get("reason") or event.get("limit") or "the budget was used up")
        return reason

    @property
    def decisions(self) -> list[Event]:
        """What search, looks, budget and retries decided, in order."""
        kinds = (Kind.SEARCH_DECISION, Kind.LOOKED, Kind.BUDGET_STOP, Kind.ARM_RETRIED)
        return [event for event in self.events if event.kind in kinds]

    @property
    def search_decisions(self) -> list[Object]:
        """What a search decided, in order."""
        return [event.payload for event in self.events if event.kind == Kind.SEARCH_DECISION]

    @property
    def looks(self) -> list[Object]:
        """What each look before the last seed found, in order."""
        return [event.payload for event in self.events if event.kind == Kind.LOOKED]

    @cached_property
    def conclusion(self) -> Object:
        """What was concluded; empty where nothing was, or where that file is something else."""
        found = read_object(ExperimentFiles.conclusion.below(self.folder)) or {}
        return found if text(found.get("verdict")) else {}


def experiment_id(folder: Path) -> str | None:
    """The id of the experiment in a folder; None before it started."""
    with suppress(OSError):
        for event in read_events(folder):  # it is the first line, and the journal may have thousands
            if event.kind == Kind.STARTED:
                return event.text("experiment_id") or None
    return None
