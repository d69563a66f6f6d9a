"""Several log stores as one.

log_store:
  kind: multiplex
  params: { children: [{ kind: jsonl }, { kind: tensorboard }] }
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ...config.base import Strict
from ...config.specs import LogStoreSpec
from ...errors import EvsysError
from ...experiment.arms.observed_log_store import fill_log_dir
from ...log import get_logger
from ...protocols import LogStore
from ...registry import get_log_store
from ...training.callback import EvalRecord

_NOTED_FAILURES = 3


class MultiplexConfig(Strict):
    """Params of the `multiplex` log store."""

    children: list[LogStoreSpec] = Field(min_length=1)
    """The log stores that receive each record."""
    log_dir: str | None = None
    """Children without their own folder use `<log_dir>/<kind>`; by default `logs` in the run's folder."""


class MultiplexLogStore:
    """Sends each record to several log stores; a failing one does not affect the others."""

    name = "multiplex"
    Config = MultiplexConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = MultiplexConfig(**params)
        self._children: dict[str, LogStore] = {}
        for spec in self.cfg.children:
            label = _choose_name(spec.kind, self._children)
            self._children[label] = _build(spec, self.cfg.log_dir, label)
        self.failures: dict[str, list[str]] = {label: [] for label in self._children}
        """The first errors of each child."""

    def log_scalar(self, key: str, value: float, step: int) -> None:
        """Log one number to all children."""
        self._call_all("log_scalar", key, value, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers of one step to all children."""
        self._call_all("log_metrics", metrics, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Log the run's config to all children."""
        self._call_all("log_hyperparams", params)

    def log_artifact(self, name: str, path: str) -> None:
        """Log an artifact's path to all children."""
        self._call_all("log_artifact", name, path)

    def rewind(self, next_step: int) -> None:
        """Drop the steps from `next_step` on in every child with this method."""
        self._call_all("rewind", next_step)

    def forget(self, scoring: EvalRecord) -> None:
        """Drop one evaluation in every child with this method."""
        self._call_all("forget", scoring)

    def close(self) -> None:
        """Close all of them."""
        self._call_all("close")

    def _call_all(self, name: str, *args: Any) -> None:
        """Call a method of every child that has it; an error only if all children fail."""
        errors: dict[str, Exception] = {}
        for label, child in self._children.items():
            try:
                if (method := getattr(child, name, None)) is not None:
                    method(*args)
            except Exception as error:
                errors[label] = error
                message = f"{type(error).__name__}: {error}"
                if len(self.failures[label]) < _NOTED_FAILURES:  # a full disk would otherwise be reported at every step
                    self.failures[label].append(message)
                    get_logger(__name__).warning("log store '%s' failed, the others continue: %s", label, message)
        if len(errors) == len(self._children):
            reasons = "; ".join(f"{label}: {error}" for label, error in errors.items())
            raise EvsysError(f"every log store failed. {reasons}") from next(iter(errors.values()))


def _build(spec: LogStoreSpec, log_dir: str | None, label: str) -> LogStore:
    params = spec.arguments if log_dir is None else fill_log_dir(spec, Path(log_dir) / label)
    return get_log_store(spec.kind)(**params)


def _choose_name(kind: str, taken: Mapping[str, object]) -> str:
    """`jsonl`, and `jsonl-2` for a second child of the same kind."""
    names = [kind, *(f"{kind}-{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)
