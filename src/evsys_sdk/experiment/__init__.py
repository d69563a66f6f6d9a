"""Room 8: one config -> arms x seeds -> results -> a conclusion.

arms        which runs an experiment consists of
allocation  which of them are trained, and how far
scheduler   brings them to a launcher, as many at a time as it has room for
launcher    where they are executed; launchers/ are the built-in ones
runner      one arm from rows to result, as a list of named steps
record_dir  where each of them is written, and how it is taken up again
journal     everything that happened to the experiment, in order
experiment  all of this together

Loaded on first use: the statistics below are asked for by those who train nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .experiment import Experiment, run_experiment
    from .results import ArmResult, ExperimentResult
    from .sweep import Sweep

__all__ = ["ArmResult", "Experiment", "ExperimentResult", "Sweep", "run_experiment"]

__getattr__ = lazy_names(
    __name__,
    {"experiment": "Experiment run_experiment", "results": "ArmResult ExperimentResult", "sweep": "Sweep"},
)
