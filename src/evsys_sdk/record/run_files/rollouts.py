"""The attempts that a run learned from: one line each, in the order in which its steps used them.

    {"step": 3, "group": 0, "sample": 1, "status": "ok", "reward": 1.0, "tokens": 12, "turns": 1,
     "task_id": "add-4", "messages": [...], "info": {...}}

Every attempt has its line, and with it its reward, so that the lines of a step reproduce the mean reward of that step
exactly. Conversation and info may have been left out to save room; `dropped` then says for which reason. What differs
each time the same run is repeated (seconds, retries) stands in its own file, one line a step, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..jsonable import dump_json, encode_line
from ..jsonl_file import JsonlFile, read_records
from ..layout import LogFiles, RunFiles
from ..values import Object, number

DROPPED = "dropped"
"""Key of a line without its conversation: why it was left out (`share` or `size`)."""


class RolloutLog:
    """Writes the attempts of one run; the files are made when there is a first one."""

    def __init__(self, run: RunFiles) -> None:
        self._files = run.logs.below(LogFiles.training.name)
        self._where = str(self._files.rollouts)
        self._lines: JsonlFile | None = None
        self._timing: JsonlFile | None = None

    @property
    def size(self) -> int:
        """Bytes on disk: after a rewind the same as in a run that was never aborted."""
        return self._files.rollouts.stat().st_size if self._files.rollouts.exists() else 0

    def rewind(self, next_step: int) -> None:
        """Forget every step from `next_step` on, because the run continues from there."""
        self.close()
        for path in (self._files.rollouts, self._files.rollout_timing):
            if path.exists():
                with JsonlFile(path) as file:
                    file.rewind(next_step)

    def encode(self, numbers: Object, said: Object) -> bytes:
        """A line as it will be written; only what was said may hold secrets, and is looked through for them."""
        return dump_json(numbers, self._where)[:-1] + b", " + encode_line(said, self._where)[1:]

    def add(self, lines: Iterable[bytes], timing: Object) -> None:
        """Record the attempts of one step, and how long they took."""
        if self._lines is None or self._timing is None:
            self._lines, self._timing = JsonlFile(self._files.rollouts), JsonlFile(self._files.rollout_timing)
        self._lines.append_line(b"".join(lines))  # in one write: hardly ever does a killed run leave half a step
        self._timing.append(timing)

    def close(self) -> None:
        """Close the files; a later `add` opens them again."""
        for file in (self._lines, self._timing):
            if file is not None:
                file.close()
        self._lines = self._timing = None


def read_rollouts(run: RunFiles) -> Iterator[Object]:
    """Every attempt that a run learned from, oldest first, with the seconds it took where they are known."""
    files = run.logs.below(LogFiles.training.name)
    timing = {line.get("step"): line.get("seconds") for line in read_records(files.rollout_timing)}
    for step, lines in groupby(read_records(files.rollouts), key=lambda line: line.get("step")):
        seconds: Any = timing.get(step)
        for at, line in enumerate(lines):
            known = isinstance(seconds, list) and at < len(seconds)  # pyright: ignore[reportUnknownArgumentType]
            yield {**line, "seconds": seconds[at]} if known else line


def mean_reward(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean reward of some attempts, summed in their order; those that failed have none."""
    rewards = [reward for line in lines if (reward := number(line.get("reward"))) is not None]
    return sum(rewards) / len(rewards) if rewards else None
