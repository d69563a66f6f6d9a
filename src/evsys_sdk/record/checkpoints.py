"""`checkpoints.jsonl`: where a run can go on from.

A line is written after the state it names is safely stored, at a point where no step is in flight. Whatever a killed
process leaves behind, the last complete line is a state the run was really in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import TrainingError
from ..files import write_json
from .jsonl_file import JsonlFile, complete_lines, repair_last_line
from .layout import RunFiles


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One point a run can go on from."""

    name: str
    next_step: int
    """How many steps had been taken, over all stages; the next one has this index."""
    state: str
    """Reference to weights and optimizer state, as the backend understands it."""
    sampler: str
    """Reference to a frozen sampler with these weights."""
    stage: int = 0
    """Which stage of a staged run (combo, continual) it belongs to."""
    final: bool = False
    """Whether its stage was finished."""
    builder: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data cursor and random state of the recipe."""
    observers: dict[str, Any] = field(default_factory=dict[str, Any])
    """State of the observers that have one, e.g. the patience of early stopping."""
    watchdog: dict[str, float] = field(default_factory=dict[str, float])
    renderer: str | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of the step it was taken after; the best checkpoint is chosen by one of them."""
    stop_reason: str | None = None
    """Why the run was stopped here before its planned end."""
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """How many tokens were `trained` on and `sampled` up to here, steps that a killed run repeated counted once."""
    scoring: dict[str, Any] | None = None
    """`step` and `sampler` of a scoring that was still running; who goes on from here scores it again."""


@dataclass(frozen=True, slots=True)
class CheckpointLog:
    """The checkpoints of one run, oldest first."""

    files: RunFiles

    @classmethod
    def in_dir(cls, run_dir: Path) -> CheckpointLog:
        return cls(RunFiles(run_dir))

    @property
    def path(self) -> Path:
        return self.files.checkpoints

    def append(self, checkpoint: Checkpoint) -> None:
        """Add a line and force it to disk."""
        with JsonlFile(self.path) as file:  # as Python writes it: an infinite patience must be read back as one
            file.append_line(json.dumps(asdict(checkpoint)).encode() + b"\n", sync=True)

    def read(self) -> list[Checkpoint]:
        """Every complete line; a half-written last line is what a killed process leaves and is passed over."""
        later = self.scores()
        return [
            replace(found, metrics={**found.metrics, **later.get(found.next_step, {})}) for found in self._complete()
        ]

    def add_scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Add what the model scored after `step` to the metrics of its checkpoint."""
        if scores:
            known = self.scores()
            known[step] = {**known.get(step, {}), **scores}
            write_json(self.files.late_scores, {str(at): known[at] for at in sorted(known)})

    def scores(self) -> dict[int, dict[str, float]]:
        """Everything that was added by `add_scores`, by step."""
        path = self.files.late_scores
        if not path.exists():
            return {}
        return {int(step): found for step, found in json.loads(path.read_text(encoding="utf-8")).items()}

    def last(self) -> Checkpoint | None:
        """The newest checkpoint, if there is one."""
        return (self.read() or [None])[-1]

    def best(self, metric: str, mode: Literal["min", "max"], *, stage: int = 0) -> Checkpoint | None:
        """The checkpoint with the best value of a metric; the earlier one wins a tie."""
        scored = [found for found in self.read() if found.stage == stage and metric in found.metrics]
        sign = 1 if mode == "min" else -1
        return min(scored, key=lambda checkpoint: sign * checkpoint.metrics[metric], default=None)

    def repair(self) -> None:
        """Cut off an unfinished last line: whoever goes on has already decided by what was read without it."""
        if self.path.exists():
            repair_last_line(self.path, keep_whole=False)

    def _complete(self) -> Iterator[Checkpoint]:
        for number, line in complete_lines(self.path):
            try:
                yield Checkpoint(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise TrainingError(
                    f"{self.path}:{number}: this checkpoint line is damaged ({error}). Remove it and all after it "
                    "to go on from the checkpoint before."
                ) from None
