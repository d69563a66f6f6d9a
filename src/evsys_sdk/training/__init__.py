"""The training loop: batches, optimiser steps, checkpoints, resume, observers and watchdogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .batch import TrainingBatch
    from .callback import Callback, EvalRecord, RunControl, RunInfo
    from .services import RunServices

__all__ = [
    "Callback",
    "EvalRecord",
    "RunControl",
    "RunInfo",
    "RunServices",
    "TrainingBatch",
]

__getattr__ = lazy_names(
    __name__,
    {"batch": "TrainingBatch", "callback": "Callback EvalRecord RunControl RunInfo", "services": "RunServices"},
)
