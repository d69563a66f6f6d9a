"""`scores.jsonl` of a run: every scoring with the value of each task, which is what comparisons are made of.

A run that goes on scores some steps again; the later line counts, and `settle` leaves only that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..eval.scores import EvalResult
from ..files import atomic_write
from ..record.jsonable import encode_line
from ..record.jsonl_file import JsonlFile, read_records
from ..training.callback import EvalRecord

FILE_NAME = "scores.jsonl"


class ScoreLog:
    """Writes the scorings of one run."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME

    def add(self, record: EvalRecord, result: EvalResult) -> None:
        """Keep one scoring; it is on disk when this returns."""
        file = JsonlFile(self.path)
        try:
            file.append(_line(record, result))
        finally:
            file.close()

    def settle(self) -> None:
        """Leave one line for each scoring, in the order of the steps."""
        lines = list(read_records(self.path))
        wanted = list(read_scores(self.path.parent))
        if lines != wanted:
            with atomic_write(self.path) as file:
                file.writelines(encode_line(line, str(self.path)) for line in wanted)


def read_scores(run_dir: Path) -> list[dict[str, Any]]:
    """Every scoring of a run in the order of the steps; of several that share split, name and step, the last."""
    latest = {_key(line): line for line in read_records(run_dir / FILE_NAME)}
    return [latest[key] for key in sorted(latest)]


def _key(line: Mapping[str, Any]) -> tuple[int, str, str]:
    return int(line["step"]), str(line["split"]), str(line["name"])


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
