"""Later feedback on answers: `feedback.jsonl` next to the traces, joined to them when they are read.

Each line has the id of the trace, the feedback and its reward. Lines are never changed: the last line of a trace and a
name counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from ...record.jsonl_file import read_records
from .trace import Feedback, RewardRule, work_out_reward

FILE: Final = "feedback.jsonl"
CORRECTION: Final = "correction"
"""Name of feedback that corrects the text of an answer."""


class GivenFeedback(BaseModel):
    """Feedback on one answer, as it is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    response_id: str = Field(min_length=1, max_length=200)
    """The id of the answer: `chatcmpl-...`."""
    name: str = Field(default="feedback", min_length=1, max_length=64)
    """Name of the rating, if there are several: `stars`, `helpful`."""
    # In this order, because a float accepts true as 1, and text accepts everything.
    value: StrictBool | float | str | None = Field(default=None, union_mode="left_to_right")
    """Thumbs (`up`, `down`, true, false) or a number."""
    comment: str = Field(default="", max_length=4_000)
    correction: str | None = Field(default=None, min_length=1, max_length=100_000)
    """The correct answer."""

    @model_validator(mode="after")
    def _require_content(self) -> GivenFeedback:
        if self.value is None and self.correction is None:
            raise ValueError("give a value or a correction")
        if isinstance(self.value, str) and len(self.value) > 200:
            raise ValueError("value may have 200 characters at most; a text belongs into comment or correction")
        return self

    def to_line(self, trace: str, rules: tuple[RewardRule, ...]) -> dict[str, Any]:
        """The line of the feedback file, with the reward and its scale."""
        line: dict[str, Any] = {"name": self.name, "value": self.value, "reward": None}
        if self.value is not None:
            line = work_out_reward([Feedback(self.name, self.value)], rules)[1][0]
        extra = {"comment": self.comment} if self.comment else {}
        if self.correction is not None:
            extra[CORRECTION] = self.correction
        return {"id": trace, **line, **extra}


type Joined = dict[str, dict[str, dict[str, Any]]]
"""Trace -> name -> its last feedback."""


def read_feedback(folder: Path) -> Joined:
    """All later feedback, by trace."""
    joined: Joined = {}
    path = folder / FILE
    for line in read_records(path) if path.is_file() else ():
        joined.setdefault(str(line["id"]), {})[str(line["name"])] = line
    return joined


def join_feedback(trace: dict[str, Any], later: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A trace with its later feedback; its reward is the mean of all rewards."""
    corrections = [line[CORRECTION] for line in later.values() if CORRECTION in line]
    entries = [entry for entry in trace["feedback"] if entry["name"] not in later]
    fields = ("name", "value", "reward", "scale", "comment", "time", "via")
    given_values = [line for line in later.values() if line.get("value") is not None]
    entries += [{key: line[key] for key in fields if key in line} for line in given_values]
    joined = dict(trace)
    if corrections:  # the reward is 1 if the answer equals its correction, else 0
        answer = trace["messages"][-1]["content"]
        entries.append({"name": CORRECTION, "value": None, "reward": float(corrections[-1].strip() == answer.strip())})
        joined[CORRECTION] = corrections[-1]
    rewards = [entry["reward"] for entry in entries if entry["reward"] is not None]
    return {**joined, "feedback": entries, "reward": sum(rewards) / len(rewards) if rewards else None}


def as_taught(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace for training: with its corrected answer, if it has one."""
    correction = trace.get(CORRECTION)
    if correction is None or trace["messages"][-1]["role"] != "assistant":
        return trace
    answer = {"role": "assistant", "content": correction}
    return {**trace, "messages": [*trace["messages"][:-1], answer], "reward": 1.0}


def list_corrections(traces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The corrected traces of those whose answers were changed by a correction."""
    return [
        as_taught(trace)
        for trace in traces
        if CORRECTION in trace and trace[CORRECTION].strip() != trace["messages"][-1]["content"].strip()
    ]
