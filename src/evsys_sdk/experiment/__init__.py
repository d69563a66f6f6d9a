"""One config -> arms x seeds -> results -> a conclusion.

preflight/   what is wrong with it, found before anything is spent; plan/ estimates its cost and its power
arms/        which runs an experiment consists of, and who brings them to a launcher
search/      which of them are trained, and how far
launcher     where they are executed; launchers/ are the built-in ones
runner       one arm from rows to result, as a list of named steps
record_dir   where each of them is written, and how it is resumed
conclusion/  what follows, by the methods in statistics/; audit/ recomputes it
experiment   all of this together; jobs/ for those that run by themselves

Loaded on first use: the statistics are also used without training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .arms.arm import Sweep
    from .arms.results import ArmResult, ExperimentResult
    from .experiment import Experiment, run_experiment

__all__ = ["ArmResult", "Experiment", "ExperimentResult", "Sweep", "run_experiment"]

__getattr__ = lazy_names(
    __name__,
    {"experiment": "Experiment run_experiment", "arms.results": "ArmResult ExperimentResult", "arms.arm": "Sweep"},
)
