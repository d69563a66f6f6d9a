"""Predictions: one line for each attempt at a task, which is at once the record of a scoring and its journal.

Each line is written when its rollout ends, so a scoring that was killed resumes: pairs of task and sample
that have a reward are not attempted again, those that failed are. The first line says which model was asked and how; a
file about another one is moved aside under a number and never mixed with this one. Each line knows the content of its
task, so that an answer is never taken for one to a task that has changed since.

    journal = PredictionJournal.open(folder / "predictions.jsonl", {"model": "openai:gpt-4.1", "temperature": 0.0})
    journal.find("task-1", task_id(task), 0)
    journal.append(prediction)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ..errors import DataError, EvalError
from ..files import atomic_write
from ..log import get_logger
from ..record.jsonable import encode_line, jsonable
from ..record.jsonl_file import JsonlFile, read_records
from ..redact import redact_text
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
    """The whole conversation, where it is more than one question and the text of its answer."""
    output_tokens: int | None = None
    """Of `tokens`, those that the model wrote; None in records of earlier versions."""
    task: str = ""
    """`task_id` of the task, by which an answer to a changed task is recognised."""

    @classmethod
    def of(cls, rollout: Rollout, task: str) -> Self:
        """The prediction that a rollout made."""
        calls_tools = bool(rollout.turns and rollout.turns[-1].message.get("tool_calls"))
        return cls(
            task_id=rollout.task_id,
            sample=rollout.sample,
            status=rollout.status,
            reward=rollout.reward,
            text=rollout.completion,
            error=rollout.error and redact_text(rollout.error),
            info=rollout.info,
            seconds=rollout.seconds,
            tokens=rollout.tokens,
            cost_usd=rollout.cost_usd,
            turns=len(rollout.turns),
            attempts=rollout.attempts,
            messages=rollout.messages if len(rollout.turns) > 1 or calls_tools else [],
            output_tokens=sum(turn.output_tokens for turn in rollout.turns),
            task=task,
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

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self.path = path
        # As it will be read: a tuple that became a list must not look like a change.
        self.header: dict[str, Any] = json.loads(encode_line({"scoring": jsonable(identity)}, str(path)))
        self._finished: dict[tuple[str, str, int], Prediction] = {}
        """By task, its content and the sample; only those with a reward."""
        self._file: JsonlFile | None = None

    @classmethod
    def open(cls, path: Path | None, identity: Mapping[str, Any]) -> Self:
        """Resume the journal of the same scoring, or begin a new one; other journals at `path` are moved aside."""
        journal = cls(path, identity)
        if path is None:
            return journal
        try:
            if path.exists() and not journal._take_up(path):
                _put_aside(path)
            journal._file = JsonlFile(path)
            if path.stat().st_size == 0:
                journal._file.append(journal.header)
        except (OSError, DataError) as error:
            raise EvalError(f"{path}: predictions cannot be kept there: {error}. Choose another folder.") from error
        return journal

    def find(self, name: str, task: str, sample: int) -> Prediction | None:
        """The finished prediction for the task of this name and `task_id`, if there is one."""
        return self._finished.get((name, task, sample))

    def append(self, prediction: Prediction) -> None:
        """Keep one prediction; a failed one too, though it will be attempted again."""
        self._remember(prediction)
        if self._file is not None:
            self._file.append(asdict(prediction))

    def settle(self, predictions: Iterable[Prediction]) -> None:
        """Write the file anew: whatever else a later scoring could use, then these predictions in their order."""
        if self.path is None:
            return
        ordered = {(one.task_id, one.task, one.sample): one for one in predictions}
        others = [one for key, one in self._finished.items() if key not in ordered]
        lines = [self.header, *(asdict(one) for one in (*others, *ordered.values()))]
        # The open file is the old one from here on, so nothing can be appended any more: this comes last.
        with atomic_write(self.path) as file:
            file.writelines(encode_line(line, str(self.path)) for line in lines)

    def close(self) -> None:
        """Close the file; doing it twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remember(self, prediction: Prediction) -> None:
        if not prediction.failed:
            self._finished[prediction.task_id, prediction.task, prediction.sample] = prediction

    def _take_up(self, path: Path) -> bool:
        """Read what an earlier attempt left; False when it is about something else."""
        lines = read_records(path)
        if next(lines, self.header) != self.header:  # an empty file is what a killed scoring of any kind leaves
            return False
        for record in lines:
            prediction = _read_prediction(record)
            if prediction is None:
                get_logger(__name__).warning("%s: a line is no prediction; its task is run again: %s", path, record)
            else:
                self._remember(prediction)
        return True


_FIELDS = frozenset(each.name for each in fields(Prediction))


def _read_prediction(record: Mapping[str, Any]) -> Prediction | None:
    try:
        return Prediction(**{key: value for key, value in record.items() if key in _FIELDS})
    except TypeError:
        return None


def _put_aside(path: Path) -> None:
    """Move a journal that belongs to another scoring out of the way: it may have been expensive."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    get_logger(__name__).info("%s belongs to another scoring and is now %s", path, aside.name)
