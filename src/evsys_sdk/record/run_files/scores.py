"""`scores.jsonl` of a run: every scoring with the value of each task, for comparisons.

A run that continues repeats some scorings; the last line counts, and `settle` removes the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files import atomic_write
from ..events import Journal, Kind
from ..evidence import hash_value, hash_weights
from ..jsonable import encode_line
from ..jsonl_file import JsonlFile, parse_object, read_records
from ..layout import ExperimentFiles, RunFiles
from ..values import items, number

if TYPE_CHECKING:
    from ...eval.scores import EvalResult
    from ...training.callback import EvalRecord


class ScoreLog:
    """Writes the scorings of one run."""

    def __init__(self, run_dir: Path) -> None:
        self.path = RunFiles(run_dir).scores

    def add(self, record: EvalRecord, result: EvalResult) -> None:
        """Write one scoring, after its hash is in the journal of the experiment.

        A line without a hash in the journal was added by someone else.
        """
        line = _line(record, result)
        experiment_dir = self.path.parent.parent
        if ExperimentFiles(experiment_dir).journal.exists():
            fields = {"arm": self.path.parent.name, "split": record.split, "name": record.name, "step": record.step}
            with Journal.of(experiment_dir) as journal:
                journal.append(Kind.SCORED, **fields, line=hash_line(line), weights=self._hash_weights(result.model))
        with JsonlFile(self.path) as file:
            file.append(line)

    def _hash_weights(self, model: str) -> dict[str, str]:
        """The hash of the scored weights by their path in the run's folder; empty if they are not stored there."""
        run_dir = self.path.parent.resolve()
        for folder in (
            Path(model).resolve(),
            Path(model.rpartition(" ")[0]).resolve(),
        ):  # a tuned prompt's hash follows
            if folder.is_relative_to(run_dir / RunFiles.stored.name) and (sha256 := hash_weights(folder)):
                return {folder.relative_to(run_dir).as_posix(): sha256}
        return {}

    def settle(self) -> None:
        """Keep one line per scoring, in the order of the steps."""
        lines, ordered = load_score_lines(self.path.parent), read_scores(self.path.parent)
        if lines != ordered:
            with atomic_write(self.path) as file:
                file.writelines(encode_line(line, str(self.path)) for line in ordered)


def hash_line(line: Mapping[str, Any]) -> str:
    """The hash of a scoring in its encoded form."""
    # Encoding turns tuples into lists and keys into text, and redacts secrets.
    return hash_value(parse_object(encode_line(dict(line), "scores")))


def load_score_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Every line, also repeated scorings; a file that cannot be read is an error."""
    return list(read_records(RunFiles(run_dir).scores))


def read_scores(run_dir: Path) -> list[dict[str, Any]]:
    """The scorings of a run in the order of the steps; of those with equal split, name and step, the last."""
    lines = load_score_lines(run_dir)
    latest = {(int(line["step"]), str(line["split"]), str(line["name"])): line for line in lines}
    return [latest[key] for key in sorted(latest)]


def metric_name(split: str, name: str, metric: str) -> str:
    """The full name of a metric in results and logs."""
    return f"{split}/{metric}" if name in ("", split) else f"{split}/{name}/{metric}"


def task_scores(line: Mapping[str, Any], score: Mapping[str, Any]) -> dict[str, float] | None:
    """Task -> finite value of a metric; None if the metric has no values per task."""
    tasks, values = items(line.get("tasks")), items(score.get("per_task"))
    if not values or len(tasks) != len(values):
        return None
    return {str(task): value for task, raw in zip(tasks, values, strict=True) if (value := number(raw)) is not None}


def find_scored_sets(run_dir: Path, split: str, hashes: Sequence[str]) -> set[tuple[str, int]]:
    """The scorings of a run on the given task sets, as (sha256, step); only lines with a hash are parsed."""
    try:
        with RunFiles(run_dir).scores.open("rb") as file:
            return {scored for line in file for scored in _sets_in(line, split, hashes)}
    except OSError:  # usually: it was not scored
        return set()


def _sets_in(line: bytes, split: str, hashes: Sequence[str]) -> Iterator[tuple[str, int]]:
    named = [sha256 for sha256 in hashes if sha256.encode() in line]
    record = (parse_object(line) if named else None) or {}
    if record.get("split") == split and record.get("sha256") in named and isinstance(record.get("step"), int):
        yield record["sha256"], record["step"]


def _line(record: EvalRecord, result: EvalResult) -> dict[str, Any]:
    return {
        "split": record.split,
        "name": record.name,
        "step": record.step,
        "benchmark": result.benchmark,
        "sha256": result.sha256,
        "model": result.model,
        "metrics": {name: asdict(value) for name, value in result.metrics.items()},
        **result.per_task(),
        "failed_samples": result.n_failed,
        "unscored": result.unscored,
        "metric_errors": result.metric_errors,
        "tokens": result.tokens,
        "cost_usd": result.cost_usd,
        "seconds": result.seconds,
    }
