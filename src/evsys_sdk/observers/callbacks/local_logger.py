"""The research record of a run on disk, by concern, with no dashboard needed:

    <run_dir>/logs/
      hypothesis.md                 what the run was meant to show
      conclusion.md                 what happened in it
      data/training_data.jsonl      the rows it was trained on
      training/metrics.jsonl        one line a step; what measures the machine is in timing.jsonl next to it
      validation/metrics.jsonl      one line a scoring ...
      validation/rollouts.jsonl     ... and one line for each of its predictions
      test/                         as validation/; train_fit/ where training rows were scored

Files grow line by line. A resumed run drops the lines of the steps it repeats, so what can be reproduced ends up byte
for byte as in an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.base import Strict
from ...history.text import write_markdown_table
from ...protocols import Row, RunResult
from ...record.layout import LogFiles, RunFiles
from ...record.run_files.logs import RunLogs, last_scores, last_step
from ...record.run_files.metrics import restore_nonfinite
from ...record.runs import RunRecord
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo


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
        said = (info.hypothesis or "").strip() or "None was given for this run."
        page = f"# Hypothesis of experiment `{info.experiment}`\n\n{said}\n"
        self._logs.write_page(self._logs.files.hypothesis, page)
        self._logs.write_page(self._logs.files.conclusion, None)  # the run continues, so it is no longer true
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
            # in front for the order of the keys, and behind so that no prediction says something else
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
            checkpoints=RunRecord(self._info.run_dir.parent, self._info.run_dir.name, "").checkpoints
            or self._checkpoints,
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


# What happened in one run, in words: the page `local_logger` leaves behind.
#
# It reports; it does not judge. Whether the hypothesis holds is decided over all arms and seeds of the experiment.


@dataclass(frozen=True, slots=True)
class RunStory:
    """Everything the page is written from."""

    experiment: str
    run_id: str
    result: RunResult
    total_steps: int | None = None
    stop_reason: str | None = None
    last_step: Mapping[str, Any] | None = None
    """The last line of training metrics."""
    scores: Sequence[Mapping[str, Any]] = ()
    """The last line of each benchmark, with its `split`."""
    checkpoints: Sequence[Mapping[str, Any]] = ()


def write_up(story: RunStory) -> str:
    """The page as Markdown."""
    last_metrics = restore_nonfinite(story.last_step).items() if story.last_step else ()
    parts = [
        f"# Conclusion of run `{story.run_id}`: {story.result.status}",
        _what_happened(story),
        _error(story.result),
        _table("Last training metrics", ("metric", "value"), last_metrics),
        _table("Last scores", ("split", "benchmark", "step", "metric", "value"), _scores(story)),
        _table("Result", ("metric", "value"), story.result.metrics.items()),
        _table("Artifacts", ("name", "path"), story.result.artifacts.items()),
        _checkpoints(story),
        f"This page is about one run of experiment `{story.experiment}`; one run alone does not decide a hypothesis.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what_happened(story: RunStory) -> str:
    done = story.last_step["step"] if story.last_step else 0
    planned = "" if story.total_steps is None else f" of {story.total_steps}"
    verb = {"completed": "It completed", "failed": "It failed", "cancelled": "It was cancelled"}[story.result.status]
    lines = [f"{verb} after {done}{planned} steps."]
    if story.stop_reason:
        lines.append(f"It was stopped before its planned end: {story.stop_reason}.")
    if not story.scores:
        lines.append("Nothing was scored, so this run says nothing about task performance.")
    return " ".join(lines)


def _error(result: RunResult) -> str:
    if not result.error:
        return "" if result.status != "failed" else "## Error\n\nNo reason was recorded."
    return "## Error\n\n" + "\n".join(f"    {line}" for line in result.error.splitlines())


def _scores(story: RunStory) -> Iterable[tuple[Any, ...]]:
    for line in story.scores:
        record = restore_nonfinite(line)
        split, name, step = record.pop("split"), record.pop("name"), record.pop("step")
        if not record:
            yield split, name, step, "(no score)", ""
        for metric, value in record.items():
            yield split, name, step, metric, value


def _checkpoints(story: RunStory) -> str:
    if not story.checkpoints:
        return "## Checkpoints\n\nNone was written."
    last = story.checkpoints[-1]
    step = last.get("next_step", last.get("step"))
    best = story.result.artifacts.get("best_checkpoint")
    lines = [
        f"{len(story.checkpoints)} written; the last one is `{last.get('name')}`, after step {step}.",
        f"Best by validation: `{best}`." if best else "None was chosen as the best one.",
    ]
    return "## Checkpoints\n\n" + " ".join(lines)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    texts = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return f"## {title}\n\n{write_markdown_table(header, texts)}" if texts else ""
