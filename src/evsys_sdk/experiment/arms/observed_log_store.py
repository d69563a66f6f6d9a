"""Give log stores and callbacks the same metrics.

The training loop calls callbacks, so the log store is wrapped as a callback. A user's algorithm may log to
`ctx.log_store` instead, so that store also calls the callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...config import LogStoreSpec
from ...log import get_logger
from ...protocols import LogStore
from ...registry import config_model, get_log_store
from ...training.callback import Callback, EvalRecord, Observers, RunControl, RunInfo


class LogStoreCallback(Callback):
    """Writes the reports of the loop into a log store."""

    name = "log_store"

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        # `rewind` and `forget` are optional for log stores of users.
        rewind = getattr(self._store, "rewind", None)
        if rewind is not None:
            rewind(info.next_step)
        forget = getattr(self._store, "forget", None)
        if forget is not None:
            for scoring in info.repeats:
                forget(scoring)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._store.log_metrics(metrics, step)

    def on_eval(self, record: EvalRecord) -> None:
        self._store.log_metrics(record.named_metrics, record.step)

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._store.log_artifact(checkpoint["name"], checkpoint["state"])

    def close(self) -> None:
        self._store.close()


class ObservedLogStore:
    """A log store for algorithms that log by themselves: every metric also reaches the callbacks."""

    name: ClassVar[str] = "observed"

    def __init__(self, store: LogStore, observers: Observers) -> None:
        self._store, self._observers = store, observers

    def log_scalar(self, key: str, value: float, step: int) -> None:
        self._observers.on_step(step, {key: value})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._observers.on_step(step, metrics)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self._store.log_hyperparams(params)

    def log_artifact(self, name: str, path: str) -> None:
        try:
            self._store.log_artifact(name, path)
        except Exception as error:
            get_logger(__name__).warning("the log store failed to log the artifact '%s': %s", name, error)

    def close(self) -> None:
        self._store.close()


def fill_log_dir(spec: LogStoreSpec, folder: Path) -> dict[str, Any]:
    """Params of a log store; one that takes a `log_dir` and was given none writes to `folder`."""
    model = config_model(get_log_store(spec.kind))
    field = model.model_fields.get("log_dir") if model is not None else None
    if field is None or field.default is not None:
        return spec.arguments
    return {**spec.arguments, "log_dir": spec.params.get("log_dir") or str(folder)}
