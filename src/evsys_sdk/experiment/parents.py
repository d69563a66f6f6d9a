"""The experiment that a config has already been: what its children call their parent."""

from __future__ import annotations

import re
from pathlib import Path

from ..config import ExperimentConfig
from .journal import experiment_id


def latest_attempt(config: ExperimentConfig) -> Path | None:
    """The folder of the latest attempt at an experiment of this name that was started, if there is one."""
    base = Path(config.output_dir) / config.name
    numbered = re.compile(rf"{re.escape(base.name)}(?:\.(\d+))?")
    try:
        found = [
            (int(match[1] or 1), path) for path in base.parent.iterdir() if (match := numbered.fullmatch(path.name))
        ]
    except OSError:
        return None
    return next((path for _, path in sorted(found, reverse=True) if experiment_id(path) is not None), None)


def parent_id(config: ExperimentConfig) -> str | None:
    """The id of the latest attempt at an experiment of this name, if there is one on record."""
    folder = latest_attempt(config)
    return experiment_id(folder) if folder else None
