"""The training rollouts of a run: one line each, in the order in which its steps used them.

    {"step": 3, "group": 0, "sample": 1, "status": "ok", "reward": 1.0, "tokens": 12, "turns": 1,
     "task_id": "add-4", "messages": [...], "info": {...}}

Every rollout has a line with its reward, so that the lines of a step reproduce its mean reward exactly. Messages and
info may be left out to save space; `dropped` then holds the reason. Measurements that differ between repetitions of the
same run (seconds, retries) are in another file, one line per step, in the same order.
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
"""Key of the reason why a line has no messages (`share` or `size`)."""


class RolloutLog:
    """Writes the rollouts of a run; the files are created with the first one."""

    def __init__(self, run: RunFiles) -> None:
        self._files = run.logs.below(LogFiles.training.name)
        self._where = str(self._files.rollouts)
        self._lines: JsonlFile | None = None
        self._timing: JsonlFile | None = None

    @property
    def size(self) -> int:
        """Bytes on disk; after a rewind the same as in an uninterrupted run."""
        return self._files.rollouts.stat().st_size if self._files.rollouts.exists() else 0

    def rewind(self, next_step: int) -> None:
        """Drop every step from `next_step` on, because the run continues from there."""
        self.close()
        for path in (self._files.rollouts, self._files.rollout_timing):
            if path.exists():
                with JsonlFile(path) as file:
                    file.rewind(next_step)

    def encode(self, numbers: Object, content: Object) -> bytes:
        """An encoded line; only `content` (messages and info) may hold secrets and is redacted."""
        return dump_json(numbers, self._where)[:-1] + b", " + encode_line(content, self._where)[1:]

    def add(self, lines: Iterable[bytes], timing: Object) -> None:
        """Write the rollouts of one step and their timing."""
        if self._lines is None or self._timing is None:
            self._lines, self._timing = JsonlFile(self._files.rollouts), JsonlFile(self._files.rollout_timing)
        self._lines.append_line(b"".join(lines))  # one write, so that a killed run rarely leaves half a step
        self._timing.append(timing)

    def close(self) -> None:
        """Close the files; a later `add` opens them again."""
        for file in (self._lines, self._timing):
            if file is not None:
                file.close()
        self._lines = self._timing = None


def read_rollouts(run: RunFiles) -> Iterator[Object]:
    """The training rollouts of a run, oldest first, with their seconds if they are known."""
    files = run.logs.below(LogFiles.training.name)
    timing = {line.get("step"): line.get("seconds") for line in read_records(files.rollout_timing)}
    for step, lines in groupby(read_records(files.rollouts), key=lambda line: line.get("step")):
        seconds: Any = timing.get(step)
        for index, line in enumerate(lines):
            known = isinstance(seconds, list) and index < len(seconds)  # pyright: ignore[reportUnknownArgumentType]
            yield {**line, "seconds": seconds[index]} if known else line


def mean_reward(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean reward of rollouts, summed in their order; failed ones have none."""
    rewards = [reward for line in lines if (reward := number(line.get("reward"))) is not None]
    return sum(rewards) / len(rewards) if rewards else None
