"""What people said about an answer later: `feedback.jsonl` next to the traces, joined to them when they are read.

Each line names the trace, what was given and the reward it was turned into. Nothing is changed: who changes their mind
adds a line, and of one name the last counts.
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
"""The name of what a better text says about an answer."""


class GivenFeedback(BaseModel):
    """What somebody thought of one answer, as it is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    response_id: str = Field(min_length=1, max_length=200)
    """The id of the answer: `chatcmpl-...`."""
    name: str = Field(default="feedback", min_length=1, max_length=64)
    """What is judged, where there are several things: `stars`, `helpful`."""
    # In this order: a float would take true for 1, and a text everything.
    value: StrictBool | float | str | None = Field(default=None, union_mode="left_to_right")
    """Thumbs (`up`, `down`, true, false) or a number."""
    comment: str = Field(default="", max_length=4_000)
    correction: str | None = Field(default=None, min_length=1, max_length=100_000)
    """What the answer should have been."""

    @model_validator(mode="after")
    def _say_something(self) -> GivenFeedback:
        if self.value is None and self.correction is None:
            raise ValueError("give a value or a correction")
        if isinstance(self.value, str) and len(self.value) > 200:
            raise ValueError("value may have 200 characters at most; a text belongs into comment or correction")
        return self

    def to_line(self, trace: str, rules: tuple[RewardRule, ...]) -> dict[str, Any]:
        """What is kept of it; the reward with the rule that made it."""
        stated: dict[str, Any] = {"name": self.name, "value": self.value, "reward": None}
        if self.value is not None:
            stated = work_out_reward([Feedback(self.name, self.value)], rules)[1][0]
        more = {"comment": self.comment} if self.comment else {}
        if self.correction is not None:
            more[CORRECTION] = self.correction
        return {"id": trace, **stated, **more}


type Joined = dict[str, dict[str, dict[str, Any]]]
"""Trace -> name -> what was said last."""


def read_feedback(folder: Path) -> Joined:
    """All feedback that came later, by trace."""
    found: Joined = {}
    path = folder / FILE
    for line in read_records(path) if path.is_file() else ():
        found.setdefault(str(line["id"]), {})[str(line["name"])] = line
    return found


def join_feedback(trace: dict[str, Any], given: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A trace with what was said about it later; its reward is the mean of all that counts."""
    corrections = [line[CORRECTION] for line in given.values() if CORRECTION in line]
    stated = [one for one in trace["feedback"] if one["name"] not in given]
    kept = ("name", "value", "reward", "scale", "comment", "time", "via")
    given_values = [line for line in given.values() if line.get("value") is not None]
    stated += [{key: line[key] for key in kept if key in line} for line in given_values]
    joined = dict(trace)
    if corrections:  # the answer is as good as what it should have been, or it is not
        answer = trace["messages"][-1]["content"]
        stated.append({"name": CORRECTION, "value": None, "reward": float(corrections[-1].strip() == answer.strip())})
        joined[CORRECTION] = corrections[-1]
    rewards = [one["reward"] for one in stated if one["reward"] is not None]
    return {**joined, "feedback": stated, "reward": sum(rewards) / len(rewards) if rewards else None}


def as_taught(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace as something is learned from it: with the answer that it should have had, where somebody said so."""
    correction = trace.get(CORRECTION)
    if correction is None or trace["messages"][-1]["role"] != "assistant":
        return trace
    answer = {"role": "assistant", "content": correction}
    return {**trace, "messages": [*trace["messages"][:-1], answer], "reward": 1.0}


def list_corrections(traces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is taught by those of some traces whose answers were put right."""
    return [
        as_taught(one)
        for one in traces
        if CORRECTION in one and one[CORRECTION].strip() != one["messages"][-1]["content"].strip()
    ]
