"""The experiment that a config has already been: what its children call their parent."""

from __future__ import annotations

from pathlib import Path

from ..config import ExperimentConfig
from ..paths import in_project
from ..record.folders import find_attempts
from ..record.reader import experiment_id


def latest_attempt(config: ExperimentConfig) -> Path | None:
    """The folder of the latest attempt at an experiment of this name that was started, if there is one."""
    attempts = find_attempts(in_project(config.output_dir) / config.name)
    latest_first = (attempts[number] for number in sorted(attempts, reverse=True))
    return next((path for path in latest_first if experiment_id(path) is not None), None)
