"""The log files of a run, readable without a dashboard:

    <run_dir>/logs/
      hypothesis.md                 the hypothesis of the run
      conclusion.md                 the outcome of the run
      data/training_data.jsonl      the training rows
      training/metrics.jsonl        one line per step; system metrics are in timing.jsonl
      validation/metrics.jsonl      one line per evaluation ...
      validation/rollouts.jsonl     ... and one line per prediction
      test/                         like validation/; train_fit/ for training rows

Files grow line by line. A resumed run drops the lines of repeated steps, so reproducible content equals that of an
uninterrupted run byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...config.base import Strict
from ...history.text import write_markdown_table
from ...protocols import Row, RunResult
from ...record.layout import LogFiles, RunFiles
from ...record.run_files.logs import RunLogs, last_scores, last_step
from ...record.run_files.metrics import restore_nonfinite
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo


class LocalLoggerConfig(Strict):
    """Params of the `local_logger` callback."""

    training_data: bool = True
    """Whether to copy the training rows."""
    predictions: bool = True
    """Whether to store the predictions behind each score."""


class LocalLogger(Callback):
    """Writes the run's `logs/` folder: data, metrics, predictions, hypothesis and conclusion."""

    name = "local_logger"
    Config = LocalLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = LocalLoggerConfig(**params)
        self._info: RunInfo | None = None
        self._control = RunControl()

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Create the folder, or continue that of an earlier attempt."""
        self._info, self._control = info, control
        self._logs = RunLogs(RunFiles(info.run_dir).logs)
        hypothesis = (info.hypothesis or "").strip() or "None was given for this run."
        page = f"# Hypothesis of experiment `{info.experiment}`\n\n{hypothesis}\n"
        self._logs.write_page(self._logs.files.hypothesis, page)
        self._logs.write_page(self._logs.files.conclusion, None)  # outdated once the run continues
        self._logs.rewind(info.next_step, below=True)
        for scoring in info.repeats:
            files = self._logs.files.of_split(scoring.split)
            self._logs.drop([files.metrics, files.timing, files.rollouts], partial(_is_about, scoring))

    def on_data(self, rows: Sequence[Row]) -> None:
        """Store the rows; a later call, e.g. of a later stage, appends."""
        if self.cfg.training_data:
            self._logs.add_rows(rows)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._logs.add_metrics(self._training, step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        files = self._logs.files.of_split(record.split)
        self._logs.add_metrics(files, record.step, record.metrics, name=record.name, split=record.split)
        for prediction in record.predictions if self.cfg.predictions else ():
            where = {"step": int(record.step), "name": record.name}
            # Twice: first for the order of keys, last so that a prediction cannot override it.
            self._logs.append(files.rollouts, where | dict(prediction) | where)

    def on_run_end(self, result: RunResult) -> None:
        if self._info is None:
            return
        page = write_page(
            self._info,
            result,
            stop_reason=self._control.stop_reason,
            steps=(last_step(self._training) or {"step": 0})["step"],
            scores=list(last_scores(self._logs.files)),  # from disk, including earlier attempts
        )
        self._logs.write_page(self._logs.files.conclusion, page)

    def close(self) -> None:
        if self._info is not None:
            self._logs.close()

    @property
    def _training(self) -> LogFiles:
        return self._logs.files.below(LogFiles.training.name)


def _is_about(scoring: EvalRecord, line: Mapping[str, Any]) -> bool:
    """Whether a line is a score or a prediction of an evaluation."""
    same_split = line.get("split", scoring.split) == scoring.split
    return (line.get("step"), line.get("name")) == (scoring.step, scoring.name) and same_split


def write_page(
    info: RunInfo,
    result: RunResult,
    *,
    stop_reason: str | None,
    steps: int,
    scores: Sequence[Mapping[str, Any]],
) -> str:
    """The outcome of one run, as Markdown. The hypothesis is decided over all arms and seeds."""
    planned = "" if info.total_steps is None else f" of {info.total_steps}"
    verb = {"completed": "It completed", "failed": "It failed", "cancelled": "It was cancelled"}[result.status]
    story = [f"{verb} after {steps}{planned} steps."]
    story += [f"It was stopped before its planned end: {stop_reason}."] if stop_reason else []
    story += [] if scores else ["Nothing was scored, so this run shows nothing about task performance."]
    error = "\n".join(f"    {line}" for line in (result.error or "").splitlines())
    parts = [
        f"# Conclusion of run `{info.run_id}`: {result.status}",
        " ".join(story),
        f"## Error\n\n{error}" if error else "",
        _table("Last scores", ("split", "benchmark", "step", "metric", "value"), _scores(scores)),
        _table("Result", ("metric", "value"), result.metrics.items()),
        f"This page is about one run of experiment `{info.experiment}`; one run alone does not decide a hypothesis.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _scores(lines: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    for line in lines:
        record = restore_nonfinite(line)
        place = record.pop("split"), record.pop("name"), record.pop("step")
        yield from ((*place, metric, value) for metric, value in (record or {"(no score)": ""}).items())


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    texts = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return f"## {title}\n\n{write_markdown_table(header, texts)}" if texts else ""
