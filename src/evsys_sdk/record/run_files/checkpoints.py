"""`checkpoints.jsonl`: the states from which a run can continue.

A line is written after its state is stored, when no step is in flight. So the last complete line is always a valid
state, also after a kill.

A reference to a checkpoint is the folder of a run, which means its last one, or a name below that folder:

    outputs/routing/sft            outputs/routing/sft/best            outputs/routing/sft/step000120

Unlike the names of the stored folders, these names do not depend on interruptions of the run.
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
"""The folders in which a checkpoint is stored."""


def find_checkpoint(reference: str | Path) -> Checkpoint | None:
    """The checkpoint of a reference (a run's folder, or a name below it); None for other references."""
    path = Path(reference)
    if (run_log := CheckpointLog.in_dir(path)).path.is_file():
        return run_log.find("last")
    path = path.parent if path.name in _PARTS else path
    folder = path.parent.parent if path.parent.name == RunFiles.stored.name else path.parent
    log = CheckpointLog.in_dir(folder)
    return log.find(path.name) if log.path.is_file() else None


def locate_weights(reference: str, *, sampler: bool = False) -> str:
    """The backend's reference to the weights of a checkpoint; other references are returned unchanged."""
    # An existing folder without checkpoints holds weights itself, e.g. those of a model.
    if "://" in reference or ((path := Path(reference)).is_dir() and not CheckpointLog.in_dir(path).path.is_file()):
        return reference
    checkpoint = find_checkpoint(reference)
    if checkpoint is None:
        return reference
    return checkpoint.sampler if sampler else checkpoint.state


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state from which a run can continue."""

    name: str
    next_step: int
    """The number of steps so far, over all stages, which is the index of the next step."""
    state: str
    """The backend's reference to weights and optimizer state."""
    sampler: str
    """The backend's reference to a sampler with these weights."""
    stage: int = 0
    """Index of the stage in a staged run (combo, continual)."""
    final: bool = False
    """Whether its stage was finished."""
    builder: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data cursor and random state of the recipe."""
    observers: dict[str, Any] = field(default_factory=dict[str, Any])
    """State of the observers, e.g. the patience of early stopping."""
    watchdog: dict[str, float] = field(default_factory=dict[str, float])
    renderer: str | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of its step; one of them selects the best checkpoint."""
    stop_reason: str | None = None
    """Why the run stopped here before its planned end."""
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens `trained` on and `sampled` so far; steps that a killed run repeated count once."""
    scoring: dict[str, Any] | None = None
    """`step` and `sampler` of a scoring in flight; a run that continues from here repeats it."""


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
        with JsonlFile(self.path) as file:  # plain `json`, because it reads infinities back
            file.append_line(json.dumps(asdict(checkpoint)).encode() + b"\n", sync=True)

    def read(self) -> list[Checkpoint]:
        """Every checkpoint; a half-written last line of a killed process is skipped."""
        later = self.scores()
        return [
            replace(checkpoint, metrics={**checkpoint.metrics, **later.get(checkpoint.next_step, {})})
            for checkpoint in self._complete()
        ]

    def add_scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Add scores after `step` to the metrics of its checkpoint."""
        if scores:
            scores_by_step = self.scores()
            scores_by_step[step] = {**scores_by_step.get(step, {}), **scores}
            write_json(self.files.late_scores, {str(at): scores_by_step[at] for at in sorted(scores_by_step)})

    def scores(self) -> dict[int, dict[str, float]]:
        """The scores from `add_scores`, by step."""
        path = self.files.late_scores
        if not path.exists():
            return {}
        return {int(step): values for step, values in json.loads(path.read_text(encoding="utf-8")).items()}

    def read_kept(self) -> list[Checkpoint]:
        """The checkpoints whose weights are still stored."""
        dropped = self.read_dropped()
        return [checkpoint for checkpoint in self.read() if checkpoint.name not in dropped]

    def last(self) -> Checkpoint | None:
        """The newest checkpoint; None without one."""
        return (self.read_kept() or [None])[-1]

    def best(self, metric: str, mode: Literal["min", "max"], *, stage: int = 0) -> Checkpoint | None:
        """The checkpoint with the best value of a metric; the earlier one in a tie."""
        return next(iter(self.rank(metric, mode, stage=stage)), None)

    def rank(self, metric: str, mode: Literal["min", "max"], *, stage: int = 0) -> list[Checkpoint]:
        """The checkpoints that have a metric, the best first."""
        scored = [
            checkpoint for checkpoint in self.read_kept() if checkpoint.stage == stage and metric in checkpoint.metrics
        ]
        sign = 1 if mode == "min" else -1  # the sort is stable, so the earlier one wins a tie
        return sorted(scored, key=lambda checkpoint: sign * checkpoint.metrics[metric])

    def read_dropped(self) -> set[str]:
        """Names of the checkpoints whose weights were removed to save space; their metrics stay."""
        path = self.files.dropped_checkpoints
        return set(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else set()

    def drop(self, checkpoint: Checkpoint) -> None:
        """Record that the weights of a checkpoint will be removed."""
        write_json(self.files.dropped_checkpoints, sorted({*self.read_dropped(), checkpoint.name}))

    def find(self, alias: str) -> Checkpoint | None:
        """The checkpoint of `last`, `best` or `step000120`; None for other names."""
        match = _ALIAS.fullmatch(alias)
        if match is None:
            return None
        kept = self.read_kept()
        if not kept:
            raise TrainingError(f"{self.files.folder} has no checkpoint yet. Wait for its first one.")
        if alias == "last":
            return kept[-1]
        if alias == "best":
            return self._best_so_far(kept)
        stage, step = match["stage"], int(match["step"])
        matching = [
            checkpoint
            for checkpoint in kept
            if checkpoint.next_step == step and (stage is None or checkpoint.stage == int(stage))
        ]
        if not matching:
            known = ", ".join(dict.fromkeys(f"step{checkpoint.next_step:06d}" for checkpoint in kept))
            raise TrainingError(f"{self.files.folder} has no checkpoint after step {step}. Name last, best or {known}.")
        return matching[
            -1
        ]  # a step that was repeated after a kill has two checkpoints; the run continued from the last one

    def _best_so_far(self, kept: list[Checkpoint]) -> Checkpoint:
        """The checkpoint that a finished run selected; of others, the best by validation score, reward or loss."""
        result = read_object(self.files.result) or {}
        chosen = text(part(result, "artifacts").get("best_checkpoint"))
        if (selected := next((checkpoint for checkpoint in kept if checkpoint.state == chosen), None)) is not None:
            return selected
        names = sorted(
            {name for checkpoint in kept for name in checkpoint.metrics}
        )  # sorted, so that every call selects by the same one
        by = next((name for name in names if name.startswith(("val/", "eval/")) and not name.endswith("/stderr")), None)
        by = by or ("reward/mean" if "reward/mean" in names else "loss")
        best = self.best(by, "min" if by == "loss" else "max", stage=kept[-1].stage)
        return best or kept[-1]

    def repair(self) -> None:
        """Cut off a half-written last line, which a resumed run did not read."""
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
