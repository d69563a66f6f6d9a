"""Room 8: one config -> arms x seeds -> results.

arms        which runs an experiment consists of
record_dir  where each of them is written, and how it is taken up again
runner      one arm from rows to result, as a list of named steps
experiment  all arms of an experiment
"""

from .experiment import Experiment, ExperimentResult, run_experiment

__all__ = ["Experiment", "ExperimentResult", "run_experiment"]
