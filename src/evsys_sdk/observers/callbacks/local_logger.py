"""The research record of a run on disk, by concern, with no dashboard needed:

    <run_dir>/logs/
      hypothesis.md                 what the run was meant to show
      conclusion.md                 what happened in it
      data/training_data.jsonl      the rows it was trained on
      training/metrics.jsonl        one line a step; what measures the machine is in timing.jsonl beside it
      validation/metrics.jsonl      one line a scoring ...
      validation/rollouts.jsonl     ... and one line for each of its predictions
      test/                         as validation/; train_fit/ where training rows were scored

Files grow line by line. A resumed run drops the lines of the steps it repeats, so what can be reproduced ends up byte
for byte as in an undisturbed run.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...config.base import Strict
from ...files import atomic_write, write_text
from ...protocols import Row, RunResult
from ...record.jsonable import encode_line
from ...record.jsonl_file import JsonlFile, cannot_write, read_records
from ...record.metrics import metrics_record, split_timing
from ...redact import redact_text
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo
from ...training.checkpoints import CheckpointLog
from ..run_conclusion import RunStory, write_up

_FOLDERS = {"val": "validation", "eval": "validation", "test": "test", "train_fit": "train_fit"}
"""Split of an evaluation -> folder of its records."""


class LocalLoggerConfig(Strict):
    """Params of the `local_logger` callback."""

    training_data: bool = True
    """Whether to keep a copy of the rows that were trained on."""
    predictions: bool = True
    """Whether to keep the single predictions behind each score."""


class LocalLogger(Callback):
    """Writes the run's `logs/` folder: data, metrics, predictions, hypothesis and conclusion."""

    name = "local_logger"
    Config = LocalLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = LocalLoggerConfig(**params)
        self._info: RunInfo | None = None
        self._control = RunControl()
        self._root = Path()
        self._files: dict[str, JsonlFile] = {}
        self._has_data = False
        self._checkpoints: list[Mapping[str, Any]] = []

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Make the tree, or take up the one that an earlier attempt left."""
        self._info, self._control, self._root = info, control, info.run_dir / "logs"
        try:
            write_text(self._root / "hypothesis.md", _hypothesis(info))
            (self._root / "conclusion.md").unlink(missing_ok=True)  # the run goes on, so it is no longer true
        except OSError as error:
            raise cannot_write(self._root, error) from error
        for path in sorted(self._root.glob("*/*.jsonl")):
            if path.parent.name != "data":
                self._file(str(path.relative_to(self._root))).rewind(info.next_step)
        for scoring in info.repeats:
            for path in sorted((self._root / _folder(scoring.split)).glob("*.jsonl")):
                self._file(str(path.relative_to(self._root))).drop(partial(_is_about, scoring))

    def on_data(self, rows: Sequence[Row]) -> None:
        """Keep the rows; a later call, as from a later stage of the run, adds to the first."""
        if not self.cfg.training_data:
            return
        path = self._root / "data" / "training_data.jsonl"
        if self._has_data:
            file = self._file("data/training_data.jsonl")
            for row in rows:
                file.append(dict(row))
            return
        with atomic_write(path) as out:
            out.writelines(encode_line(dict(row), f"{path}: row {number}") for number, row in enumerate(rows, 1))
        self._has_data = True

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        results, timing = split_timing(metrics)
        self._file("training/metrics.jsonl").append(metrics_record(step, results))
        if timing:
            self._file("training/timing.jsonl").append(metrics_record(step, timing))

    def on_eval(self, record: EvalRecord) -> None:
        folder = _folder(record.split)
        line = metrics_record(record.step, record.metrics, name=record.name, split=record.split)
        self._file(f"{folder}/metrics.jsonl").append(line)
        for prediction in record.predictions if self.cfg.predictions else ():
            own = {"step": int(record.step), "name": record.name}
            self._file(f"{folder}/rollouts.jsonl").append(own | dict(prediction) | own)

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoints.append(checkpoint)

    def on_run_end(self, result: RunResult) -> None:
        if self._info is None:
            return
        story = RunStory(
            experiment=self._info.experiment,
            run_id=self._info.run_id,
            result=result,
            total_steps=self._info.total_steps,
            stop_reason=self._control.stop_reason,
            last_step=_last(self._root / "training" / "metrics.jsonl"),
            scores=list(self._last_scores()),
            checkpoints=self._all_checkpoints(self._info.run_dir),
        )
        write_text(self._root / "conclusion.md", redact_text(write_up(story)))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, name: str) -> JsonlFile:
        if name not in self._files:
            self._files[name] = JsonlFile(self._root / name)
        return self._files[name]

    def _last_scores(self) -> Iterator[dict[str, Any]]:
        """The last line of each benchmark, read from disk because an earlier attempt may have written it."""
        for path in sorted(self._root.glob("*/metrics.jsonl")):
            if path.parent.name != "training":
                yield from {record["name"]: record for record in read_records(path)}.values()

    def _all_checkpoints(self, run_dir: Path) -> list[Mapping[str, Any]]:
        """Those of earlier attempts too, where the run keeps its list of them."""
        log = CheckpointLog.in_dir(run_dir)
        return list(read_records(log.path)) if log.path.exists() else self._checkpoints


def _folder(split: str) -> str:
    return _FOLDERS.get(split) or re.sub(r"[^\w.-]", "_", split).lstrip(".") or "other"


def _is_about(scoring: EvalRecord, line: Mapping[str, Any]) -> bool:
    """Whether a line is a score or a prediction of a scoring."""
    same_split = line.get("split", scoring.split) == scoring.split
    return (line.get("step"), line.get("name")) == (scoring.step, scoring.name) and same_split


def _last(path: Path) -> dict[str, Any] | None:
    return next(iter(deque(read_records(path), maxlen=1)), None)


def _hypothesis(info: RunInfo) -> str:
    text = (info.hypothesis or "").strip() or "None was given for this run."
    return f"# Hypothesis of experiment `{info.experiment}`\n\n{text}\n"
