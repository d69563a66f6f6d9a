"""`checkpoints.jsonl`: where a run can continue from.

A line is written after the state it names is safely stored, at a point where no step is in flight. Whatever a killed
process leaves behind, the last complete line is a state the run was really in.

Where a checkpoint is named, the folder of a run stands for its last one, and a name below that folder for another:

    outputs/routing/sft            outputs/routing/sft/best            outputs/routing/sft/step000120

These names stay the same however often the run was interrupted; those of the stored folders do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ...errors import TrainingError
from ...files import write_json
from ..jsonl_file import JsonlFile, complete_lines, repair_last_line
from ..layout import RunFiles
from ..values import part, read_object, text

_ALIAS = re.compile(r"last|best|(?:stage(?P<stage>\d+)-)?step(?P<step>\d+)(?:-final)?(?:-attempt\d+)?")
_PARTS = ("state", "sampler")
"""What is stored of a checkpoint, as the last part of its path."""


def find_checkpoint(reference: str | Path) -> Checkpoint | None:
    """The checkpoint that the folder of a run, or a name below it, stands for; None for any other reference."""
    path = Path(reference)
    if (whole := CheckpointLog.in_dir(path)).path.is_file():
        return whole.find("last")
    path = path.parent if path.name in _PARTS else path
    folder = path.parent.parent if path.parent.name == RunFiles.stored.name else path.parent
    log = CheckpointLog.in_dir(folder)
    return log.find(path.name) if log.path.is_file() else None


def locate_weights(reference: str, *, sampler: bool = False) -> str:
    """Where the weights of a checkpoint are, as the backend that made it knows them."""
    # A folder that is there and holds no checkpoints is weights itself, e.g. those of a model.
    if "://" in reference or ((path := Path(reference)).is_dir() and not CheckpointLog.in_dir(path).path.is_file()):
        return reference
    found = find_checkpoint(reference)
    if found is None:
        return reference
    return found.sampler if sampler else found.state


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One point a run can continue from."""

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
    """`step` and `sampler` of a scoring that was still running; who continues from here scores it again."""


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

    def read_kept(self) -> list[Checkpoint]:
        """Every checkpoint whose weights are still stored."""
        dropped = self.read_dropped()
        return [found for found in self.read() if found.name not in dropped]

    def last(self) -> Checkpoint | None:
        """The newest checkpoint, if there is one."""
        return (self.read_kept() or [None])[-1]

    def best(self, metric: str, mode: Literal["min", "max"], *, stage: int = 0) -> Checkpoint | None:
        """The checkpoint with the best value of a metric; the earlier one wins a tie."""
        return next(iter(self.rank(metric, mode, stage=stage)), None)

    def rank(self, metric: str, mode: Literal["min", "max"], *, stage: int = 0) -> list[Checkpoint]:
        """The checkpoints that have a metric, the best first."""
        scored = [found for found in self.read_kept() if found.stage == stage and metric in found.metrics]
        sign = 1 if mode == "min" else -1  # sorting keeps the order of equals, so that the earlier one wins
        return sorted(scored, key=lambda checkpoint: sign * checkpoint.metrics[metric])

    def read_dropped(self) -> set[str]:
        """Names of the checkpoints whose weights were removed to save room; what was measured at them stays."""
        path = self.files.dropped_checkpoints
        return set(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else set()

    def drop(self, checkpoint: Checkpoint) -> None:
        """Note that the weights of a checkpoint are going to be removed."""
        write_json(self.files.dropped_checkpoints, sorted({*self.read_dropped(), checkpoint.name}))

    def find(self, alias: str) -> Checkpoint | None:
        """The checkpoint that `last`, `best` or `step000120` means; None where that is no such name."""
        found = _ALIAS.fullmatch(alias)
        if found is None:
            return None
        kept = self.read_kept()
        if not kept:
            raise TrainingError(f"{self.files.folder} has no checkpoint yet. Wait for its first one.")
        if alias == "last":
            return kept[-1]
        if alias == "best":
            return self._best_so_far(kept)
        stage, step = found["stage"], int(found["step"])
        fitting = [one for one in kept if one.next_step == step and (stage is None or one.stage == int(stage))]
        if not fitting:
            known = ", ".join(dict.fromkeys(f"step{one.next_step:06d}" for one in kept))
            raise TrainingError(f"{self.files.folder} has no checkpoint after step {step}. Name last, best or {known}.")
        return fitting[-1]  # a step that was repeated after a kill has two; the run continued from the later one

    def _best_so_far(self, kept: list[Checkpoint]) -> Checkpoint:
        """The one that a finished run chose; of others, that with the best validation score, reward or loss."""
        result = read_object(self.files.result) or {}
        chosen = text(part(result, "artifacts").get("best_checkpoint"))
        if (found := next((one for one in kept if one.state == chosen), None)) is not None:
            return found
        names = sorted({name for one in kept for name in one.metrics})  # sorted, so that each look takes the same one
        by = next((name for name in names if name.startswith(("val/", "eval/")) and not name.endswith("/stderr")), None)
        by = by or ("reward/mean" if "reward/mean" in names else "loss")
        best = self.best(by, "min" if by == "loss" else "max", stage=kept[-1].stage)
        return best or kept[-1]

    def repair(self) -> None:
        """Cut off an unfinished last line: a resumed run has already decided without it."""
        if self.path.exists():
            repair_last_line(self.path, keep_whole=False)

    def _complete(self) -> Iterator[Checkpoint]:
        for number, line in complete_lines(self.path):
            try:
                yield Checkpoint(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise TrainingError(
                    f"{self.path}:{number}: this checkpoint line is damaged ({error}). Remove it and all after it "
                    "to continue from the checkpoint before."
                ) from None
