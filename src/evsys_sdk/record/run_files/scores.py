"""`scores.jsonl` of a run: every scoring with the value of each task, which is what comparisons are made of.

A run that continues scores some steps again; the later line counts, and `settle` leaves only that one.
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
        """Keep one scoring; it is on disk when this returns.

        The journal of the experiment, where there is one, has heard of it before: a line that it knows nothing of was
        put there by somebody else.
        """
        line = _line(record, result)
        experiment_dir = self.path.parent.parent
        if ExperimentFiles(experiment_dir).journal.exists():
            known = {"arm": self.path.parent.name, "split": record.split, "name": record.name, "step": record.step}
            with Journal.of(experiment_dir) as journal:
                journal.append(Kind.SCORED, **known, line=hash_line(line), weights=self._hash_weights(result.model))
        with JsonlFile(self.path) as file:
            file.append(line)

    def _hash_weights(self, model: str) -> dict[str, str]:
        """The hash of the stored weights that were scored, by their path below the run's folder."""
        run_dir = self.path.parent.resolve()
        for folder in (
            Path(model).resolve(),
            Path(model.rpartition(" ")[0]).resolve(),
        ):  # a tuned prompt's hash follows
            if folder.is_relative_to(run_dir / RunFiles.stored.name) and (found := hash_weights(folder)):
                return {folder.relative_to(run_dir).as_posix(): found}
        return {}

    def settle(self) -> None:
        """Leave one line for each scoring, in the order of the steps."""
        lines, wanted = load_score_lines(self.path.parent), read_scores(self.path.parent)
        if lines != wanted:
            with atomic_write(self.path) as file:
                file.writelines(encode_line(line, str(self.path)) for line in wanted)


def hash_line(line: Mapping[str, Any]) -> str:
    """The hash of a scoring as it is read again."""
    # Written and read back first: JSON turns tuples into lists and keys into text, and secrets are taken out.
    return hash_value(parse_object(encode_line(dict(line), "scores")))


def load_score_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Every line, also those that later ones replace; a file that cannot be read is an error."""
    return list(read_records(RunFiles(run_dir).scores))


def read_scores(run_dir: Path) -> list[dict[str, Any]]:
    """Every scoring of a run in the order of the steps; of several that share split, name and step, the last."""
    lines = load_score_lines(run_dir)
    latest = {(int(line["step"]), str(line["split"]), str(line["name"])): line for line in lines}
    return [latest[key] for key in sorted(latest)]


def metric_name(split: str, name: str, metric: str) -> str:
    """A metric of a scoring as results and logs call it."""
    return f"{split}/{metric}" if name in ("", split) else f"{split}/{name}/{metric}"


def task_scores(line: Mapping[str, Any], score: Mapping[str, Any]) -> dict[str, float] | None:
    """What a metric of a scoring is for each task that has a finite score; None where it has none by task."""
    tasks, values = items(line.get("tasks")), items(score.get("per_task"))
    if not values or len(tasks) != len(values):
        return None
    return {str(task): value for task, raw in zip(tasks, values, strict=True) if (value := number(raw)) is not None}


def find_scored_sets(run_dir: Path, split: str, hashes: Sequence[str]) -> set[tuple[str, int]]:
    """At which steps a run was scored on some task sets, as (sha256, step); only lines that name one are parsed."""
    try:
        with RunFiles(run_dir).scores.open("rb") as file:
            return {found for line in file for found in _sets_in(line, split, hashes)}
    except OSError:  # most often: it was not scored
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
