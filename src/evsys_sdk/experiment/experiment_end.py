"""Telling the callbacks that an experiment has ended; whatever they do, it has."""

from __future__ import annotations

from pathlib import Path

from ..config import ExperimentConfig
from ..log import get_logger
from ..registry import get_callback
from ..training.callback import Callback


def tell_experiment_end(config: ExperimentConfig, folder: Path) -> None:
    """Call `on_experiment_end` of the callbacks that have one."""
    for spec in config.callbacks:
        try:
            kind = get_callback(spec.kind)
            if getattr(kind, "on_experiment_end", Callback.on_experiment_end) is not Callback.on_experiment_end:
                kind(**spec.params).on_experiment_end(folder)
        except (Exception, SystemExit) as error:
            get_logger(__name__).warning("callback '%s' failed: %s: %s", spec.kind, type(error).__name__, error)
