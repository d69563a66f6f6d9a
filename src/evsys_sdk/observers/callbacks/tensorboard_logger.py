"""Curves in TensorBoard: metrics, scores and hyperparameters of a run, live.

callbacks: [{ kind: tensorboard_logger }]     then: tensorboard --logdir <output_dir>
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ...config.base import Strict
from ...protocols import RunResult
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo
from ..log_stores.tensorboard import TensorBoardLogStore


class TensorBoardLoggerConfig(Strict):
    """Params of the `tensorboard_logger` callback."""

    log_dir: str = Field(default="logs/tensorboard_logger", min_length=1)
    """Folder of the event files, relative to the run's folder; must differ from that of the log store `tensorboard`."""


class TensorBoardLogger(Callback):
    """Writes metrics, scores and hyperparameters for TensorBoard."""

    name = "tensorboard_logger"
    Config = TensorBoardLoggerConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = TensorBoardLoggerConfig(**params)
        self._store: TensorBoardLogStore | None = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        folder: Path = info.run_dir / self.cfg.log_dir
        self._store = TensorBoardLogStore(log_dir=str(folder))
        if info.steps_done or folder.exists():
            self._store.rewind(info.next_step)
        self._store.log_hyperparams({"experiment": info.experiment, "run": info.run_id, **info.config})

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._store is not None:
            self._store.log_metrics(metrics, step)

    def on_eval(self, record: EvalRecord) -> None:
        if self._store is not None:
            self._store.log_metrics(record.named_metrics, record.step)

    def on_run_end(self, result: RunResult) -> None:
        if self._store is not None:
            for name, path in result.artifacts.items():
                self._store.log_artifact(name, path)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
