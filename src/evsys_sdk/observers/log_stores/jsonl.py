"""The default log store: JSONL files, readable while they grow.

| file | content |
|---|---|
| `metrics.jsonl` | one object per call: `{"step": 3, "loss": 0.5}` |
| `timing.jsonl` | the metrics below `time/` and `system/`, which differ from run to run |
| `hyperparams.json` | the run's config, without secrets |
| `artifacts.jsonl` | name and path of each artifact |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.base import Strict
from ...errors import ConfigError, Problem
from ...record.layout import LogFiles
from ...record.run_files.logs import RunLogs
from ...training.callback import EvalRecord


class JsonlConfig(Strict):
    """Params of the `jsonl` log store."""

    log_dir: str | None = None
    """Folder of the files; by default `logs` in the run's folder."""


class JsonlLogStore:
    """Append-only JSONL files, written line by line."""

    name = "jsonl"
    Config = JsonlConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = JsonlConfig(**params)
        self._hyperparams: dict[str, Any] = {}
        self._opened: RunLogs | None = None

    def log_scalar(self, key: str, value: float, step: int) -> None:
        """Log one number."""
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers of one step as one line."""
        self._logs.add_metrics(self._logs.files, step, metrics)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Log the run's config; a second call merges into the first."""
        self._hyperparams |= params
        self._logs.write_hyperparams(self._hyperparams)

    def log_artifact(self, name: str, path: str) -> None:
        """Log the path of an artifact; repetitions by a resumed run are ignored."""
        self._logs.add_once(self._logs.files.artifacts, {"name": name, "path": str(path)})

    def rewind(self, next_step: int) -> None:
        """Drop every step from `next_step` on, because the run continues from there."""
        self._logs.rewind(next_step)

    def forget(self, scoring: EvalRecord) -> None:
        """Drop one evaluation, because it will be recorded again."""
        self._logs.drop([self._logs.files.metrics], scoring.is_of)

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _logs(self) -> RunLogs:
        if self._opened is None:
            self._opened = RunLogs(LogFiles(log_folder(self.cfg.log_dir, self.name)))
        return self._opened


def log_folder(log_dir: str | None, kind: str) -> Path:
    """The folder of a log store; outside a run it must be set."""
    if log_dir is None:
        hint = "Runs set it; elsewhere name the folder."
        raise ConfigError(Problem(f"log store '{kind}' has no folder", path="log_store.params.log_dir", hint=hint))
    return Path(log_dir)
