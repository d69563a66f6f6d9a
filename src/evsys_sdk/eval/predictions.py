"""Predictions: one line for each attempt at a task, which is at once the record of a scoring and its journal.

Each line is written when its rollout ends, so a scoring that was killed goes on where it was: pairs of task and sample
that have a reward are not attempted again, those that failed are. The first line says what was scored and how; a file
about anything else is put aside under a number and never mixed with this one.

    journal = PredictionJournal.open(folder / "predictions.jsonl", {"benchmark": sha256, "model": "openai:gpt-4.1"})
    journal.finished[("task-1", 0)].reward
    journal.append(prediction)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ..errors import EvalError
from ..log import get_logger
from ..record.jsonable import encode_line
from ..rollouts.rollout import Message, Rollout, RolloutStatus


@dataclass(frozen=True, slots=True)
class Prediction:
    """What came of one attempt at a task."""

    task_id: str
    sample: int
    status: RolloutStatus
    reward: float | None
    text: str = ""
    """The last answer."""
    error: str | None = None
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the verifier had to say."""
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float | None = None
    turns: int = 0
    attempts: int = 1
    messages: list[Message] = field(default_factory=list[Message])
    """The whole conversation, where it is more than one question and its answer."""

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """The prediction that a rollout made."""
        return cls(
            task_id=rollout.task_id,
            sample=rollout.sample,
            status=rollout.status,
            reward=rollout.reward,
            text=rollout.completion,
            error=rollout.error,
            info=rollout.info,
            seconds=rollout.seconds,
            tokens=rollout.tokens,
            cost_usd=rollout.cost_usd,
            turns=len(rollout.turns),
            attempts=rollout.attempts,
            messages=rollout.messages if len(rollout.turns) > 1 else [],
        )

    @property
    def failed(self) -> bool:
        """Whether something other than the model went wrong, so that there is no reward."""
        return self.reward is None

    @property
    def shown(self) -> dict[str, Any]:
        """What the record of a run keeps: everything that a repetition would find too."""
        kept = {"task_id": self.task_id, "sample": self.sample, "status": self.status, "reward": self.reward}
        kept |= {"prediction": self.text, "info": self.info, "turns": self.turns, "tokens": self.tokens}
        return (
            kept
            | ({"error": self.error} if self.error else {})
            | ({"messages": self.messages} if self.messages else {})
        )


class PredictionJournal:
    """The predictions of one scoring, on disk as they come; without a path, only in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.finished: dict[tuple[str, int], Prediction] = {}
        """By task and sample; only those with a reward."""
        self._descriptor: int | None = None

    @classmethod
    def open(cls, path: Path | None, identity: Mapping[str, Any]) -> Self:
        """Take up the journal of the same scoring, or begin a new one; other journals at `path` are put aside."""
        journal = cls(path)
        if path is None:
            return journal
        # As it will be read: a tuple that became a list must not look like a change.
        wanted: dict[str, Any] = json.loads(encode_line({"scoring": identity}, str(path)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not journal._take_up(path, wanted):
                _put_aside(path)
            journal._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            if os.fstat(journal._descriptor).st_size == 0:
                journal._write(wanted)
        except OSError as error:
            raise EvalError(f"{path}: predictions cannot be kept there: {error}. Choose another folder.") from error
        return journal

    def append(self, prediction: Prediction) -> None:
        """Keep one prediction; a failed one too, though it will be attempted again."""
        if not prediction.failed:
            self.finished[prediction.task_id, prediction.sample] = prediction
        if self._descriptor is not None:
            self._write(asdict(prediction))

    def close(self) -> None:
        """Close the file; doing it twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._descriptor is not None
        line = memoryview(encode_line(dict(record), str(self.path)))
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _take_up(self, path: Path, wanted: Mapping[str, Any]) -> bool:
        """Read what an earlier attempt left; False when it is about something else."""
        if not path.exists():
            return True
        data = path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        if len(complete) < len(data):  # what a killed process leaves
            os.truncate(path, len(complete))
        header, *lines = complete.split(b"\n")[:-1] or [b""]
        if header and _parsed(header) != wanted:
            return False
        for number, line in enumerate(lines, start=2):
            prediction = _prediction(_parsed(line))
            if prediction is None:
                get_logger(__name__).warning("%s:%d: this line is damaged; its task is run again.", path, number)
            elif not prediction.failed:
                self.finished[prediction.task_id, prediction.sample] = prediction
        return True


_FIELDS = frozenset(each.name for each in fields(Prediction))


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _prediction(record: Any) -> Prediction | None:
    try:
        return Prediction(**{key: value for key, value in record.items() if key in _FIELDS})
    except (AttributeError, TypeError):
        return None


def _put_aside(path: Path) -> None:
    """Move a journal that belongs to another scoring out of the way: it may have been expensive."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    get_logger(__name__).info("%s belongs to another scoring and is now %s", path, aside.name)
