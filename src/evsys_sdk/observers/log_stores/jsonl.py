"""The default log store: JSONL files that people, agents and the dashboard read as they grow.

| file | holds |
|---|---|
| `metrics.jsonl` | one object for each call: `{"step": 3, "loss": 0.5}` |
| `timing.jsonl` | the metrics below `time/`, which differ from run to run, so that `metrics.jsonl` need not |
| `hyperparams.json` | what the run was started with, without secrets |
| `artifacts.jsonl` | name and path of what the run produced |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.base import Strict
from ...errors import ConfigError, Problem
from ...files import write_json
from ...record.jsonable import jsonable
from ...record.jsonl_file import JsonlFile, cannot_write, read_records
from ...record.metrics import metrics_record, split_timing
from ...redact import redact
from ...training.callback import EvalRecord


class JsonlConfig(Strict):
    """Params of the `jsonl` log store."""

    log_dir: str | None = None
    """Folder of the files; by default `logs` in the run's own folder."""


class JsonlLogStore:
    """Append-only JSONL files, written line by line."""

    name = "jsonl"
    Config = JsonlConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = JsonlConfig(**params)
        self._files: dict[str, JsonlFile] = {}
        self._hyperparams: dict[str, Any] = {}

    def log_scalar(self, key: str, value: float, step: int) -> None:
        """Record one number."""
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the numbers of one step as one line."""
        results, timing = split_timing(metrics)
        if results or not timing:
            self._file("metrics.jsonl").append(metrics_record(step, results))
        if timing:
            self._file("timing.jsonl").append(metrics_record(step, timing))

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record what the run was started with; a second call adds to the first."""
        self._hyperparams |= redact(jsonable(params))
        path = self._folder() / "hyperparams.json"
        try:
            write_json(path, self._hyperparams)
        except OSError as error:
            raise cannot_write(path, error) from error

    def log_artifact(self, name: str, path: str) -> None:
        """Record where something the run produced can be found; a resumed run may say it again."""
        record = {"name": name, "path": str(path)}
        if record not in read_records(self._folder() / "artifacts.jsonl"):
            self._file("artifacts.jsonl").append(record)

    def rewind(self, next_step: int) -> None:
        """Forget every step from `next_step` on, because the run goes on from there."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            if (self._folder() / name).exists():
                self._file(name).rewind(next_step)

    def forget(self, scoring: EvalRecord) -> None:
        """Forget one scoring, because it will be recorded again."""
        if (self._folder() / "metrics.jsonl").exists():
            self._file("metrics.jsonl").drop(scoring.is_of)

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, name: str) -> JsonlFile:
        if name not in self._files:
            self._files[name] = JsonlFile(self._folder() / name)
        return self._files[name]

    def _folder(self) -> Path:
        return log_folder(self.cfg.log_dir, self.name)


def log_folder(log_dir: str | None, kind: str) -> Path:
    """The folder a log store writes to; outside of a run it has to be named."""
    if log_dir is None:
        hint = "Runs fill it in; elsewhere give the folder to write to."
        raise ConfigError(Problem(f"log store '{kind}' has no folder", path="log_store.params.log_dir", hint=hint))
    return Path(log_dir)
