"""Predictions: one line per attempt at a task; the file is both the record of a scoring and its journal.

A line is written when its rollout ends. A killed scoring resumes: samples with a reward are kept, failed ones are
repeated. The first line holds model and sampling params; a file with another header is renamed with a number and not
mixed in. Each line has the `task_id` of its task's content, so that an answer never counts for a changed task.

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
    """The result of one attempt at a task."""

    task_id: str
    sample: int
    status: RolloutStatus
    reward: float | None
    text: str = ""
    """The last answer."""
    error: str | None = None
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Details from the verifier."""
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float | None = None
    turns: int = 0
    attempts: int = 1
    messages: list[Message] = field(default_factory=list[Message])
    """The whole conversation, if it is more than the prompt and one answer."""
    output_tokens: int | None = None
    """Sampled tokens, a part of `tokens`; None in records of earlier versions."""
    task: str = ""
    """`task_id` of the task's content; it differs if the task was changed."""

    @classmethod
    def of(cls, rollout: Rollout, task: str) -> Self:
        """The prediction of a rollout."""
        calls_tools = bool(rollout.turns and rollout.turns[-1].message.get("tool_calls"))
        # An agent may have answered the last turn.
        goes_on = bool(rollout.messages and rollout.messages[-1].get("role") != "assistant")
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
            messages=rollout.messages if len(rollout.turns) > 1 or calls_tools or goes_on else [],
            output_tokens=sum(turn.output_tokens for turn in rollout.turns),
            task=task,
        )

    @property
    def failed(self) -> bool:
        """Whether there is no reward because of infrastructure."""
        return self.reward is None

    @property
    def shown(self) -> dict[str, Any]:
        """The reproducible fields, which the record of a run keeps."""
        row = {"task_id": self.task_id, "sample": self.sample, "status": self.status, "reward": self.reward}
        row |= {"prediction": self.text, "info": self.info, "turns": self.turns, "tokens": self.tokens}
        return (
            row | ({"error": self.error} if self.error else {}) | ({"messages": self.messages} if self.messages else {})
        )


class PredictionJournal:
    """The predictions of one scoring, written to disk as they arrive; without a path, only in memory."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self.path = path
        # After a JSON round trip, so that a tuple and a list compare equal.
        self.header: dict[str, Any] = json.loads(encode_line({"scoring": jsonable(identity)}, str(path)))
        self._finished: dict[tuple[str, str, int], Prediction] = {}
        """By task, its content and the sample number; only predictions with a reward."""
        self._file: JsonlFile | None = None

    @classmethod
    def open(cls, path: Path | None, identity: Mapping[str, Any]) -> Self:
        """Resume the journal of the same scoring or start a new one; another journal at `path` is renamed."""
        journal = cls(path, identity)
        if path is None:
            return journal
        try:
            if path.exists() and not journal._resume(path):
                _rename_existing(path)
            journal._file = JsonlFile(path)
            if path.stat().st_size == 0:
                journal._file.append(journal.header)
        except (OSError, DataError) as error:
            raise EvalError(f"{path}: predictions cannot be stored there: {error}. Choose another folder.") from error
        return journal

    def find(self, name: str, task: str, sample: int) -> Prediction | None:
        """The finished prediction for the task of this name and `task_id`, if there is one."""
        return self._finished.get((name, task, sample))

    def append(self, prediction: Prediction) -> None:
        """Add one prediction; a failed one is recorded and will be repeated."""
        self._add_finished(prediction)
        if self._file is not None:
            self._file.append(asdict(prediction))

    def rewrite(self, predictions: Iterable[Prediction]) -> None:
        """Rewrite the file: predictions that a later scoring can use, then these in their order."""
        if self.path is None:
            return
        ordered = {(prediction.task_id, prediction.task, prediction.sample): prediction for prediction in predictions}
        others = [prediction for key, prediction in self._finished.items() if key not in ordered]
        lines = [self.header, *(asdict(prediction) for prediction in (*others, *ordered.values()))]
        # Last: nothing can be appended afterwards, because the open file is the old one.
        with atomic_write(self.path) as file:
            file.writelines(encode_line(line, str(self.path)) for line in lines)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_finished(self, prediction: Prediction) -> None:
        if not prediction.failed:
            self._finished[prediction.task_id, prediction.task, prediction.sample] = prediction

    def _resume(self, path: Path) -> bool:
        """Read the predictions of an earlier attempt; False if its header differs."""
        lines = read_records(path)
        if next(lines, self.header) != self.header:  # a killed scoring may leave an empty file
            return False
        for record in lines:
            prediction = _read_prediction(record)
            if prediction is None:
                get_logger(__name__).warning("%s: a line is not a prediction; its task is repeated: %s", path, record)
            else:
                self._add_finished(prediction)
        return True


_FIELDS = frozenset(each.name for each in fields(Prediction))


def _read_prediction(record: Mapping[str, Any]) -> Prediction | None:
    try:
        return Prediction(**{key: value for key, value in record.items() if key in _FIELDS})
    except TypeError:
        return None


def _rename_existing(path: Path) -> None:
    """Rename the journal of another scoring; its samples may have been expensive."""
    number = 1
    while (renamed := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(renamed)
    get_logger(__name__).info("%s belongs to another scoring and is now %s", path, renamed.name)
