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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...config.base import Strict
from ...protocols import Row, RunResult
from ...record.layout import LogFiles, RunFiles
from ...record.logs import RunLogs, last_scores, last_step
from ...record.runs import RunRecord
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo
from ..run_conclusion import RunStory, write_up


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
        self._checkpoints: list[Mapping[str, Any]] = []

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Make the tree, or take up the one that an earlier attempt left."""
        self._info, self._control = info, control
        self._logs = RunLogs(RunFiles(info.run_dir).logs)
        self._logs.write_page(self._logs.files.hypothesis, _hypothesis(info))
        self._logs.write_page(self._logs.files.conclusion, None)  # the run goes on, so it is no longer true
        self._logs.rewind(info.next_step, below=True)
        for scoring in info.repeats:
            own = self._logs.files.of_split(scoring.split)
            self._logs.drop([own.metrics, own.timing, own.rollouts], partial(_is_about, scoring))

    def on_data(self, rows: Sequence[Row]) -> None:
        """Keep the rows; a later call, as from a later stage of the run, adds to the first."""
        if self.cfg.training_data:
            self._logs.add_rows(rows)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._logs.add_metrics(self._training, step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        own = self._logs.files.of_split(record.split)
        self._logs.add_metrics(own, record.step, record.metrics, name=record.name, split=record.split)
        for prediction in record.predictions if self.cfg.predictions else ():
            where = {"step": int(record.step), "name": record.name}
            self._logs.append(own.rollouts, where | dict(prediction) | where)

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
            last_step=last_step(self._training),
            scores=list(last_scores(self._logs.files)),  # read from disk, because an earlier attempt may have some
            checkpoints=RunRecord(self._info.run_dir, "").checkpoints or self._checkpoints,
        )
        self._logs.write_page(self._logs.files.conclusion, write_up(story))

    def close(self) -> None:
        if self._info is not None:
            self._logs.close()

    @property
    def _training(self) -> LogFiles:
        return self._logs.files.below(LogFiles.training.name)


def _is_about(scoring: EvalRecord, line: Mapping[str, Any]) -> bool:
    """Whether a line is a score or a prediction of a scoring."""
    same_split = line.get("split", scoring.split) == scoring.split
    return (line.get("step"), line.get("name")) == (scoring.step, scoring.name) and same_split


def _hypothesis(info: RunInfo) -> str:
    text = (info.hypothesis or "").strip() or "None was given for this run."
    return f"# Hypothesis of experiment `{info.experiment}`\n\n{text}\n"
