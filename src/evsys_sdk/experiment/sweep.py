"""A matrix written in Python: vary some fields of the single run of a config.

config = load_yaml("config.yaml")
Experiment(config, sweep=Sweep({"algorithm.params.learning_rate": [1e-4, 1e-3]})).run()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import ExperimentConfig, MatrixSpec
from ..errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every combination of some values, as one run each."""

    axes: Mapping[str, Sequence[Any]]
    """Dotted path into the run -> the values to try."""
    name_template: str | None = None
    """Names of the runs, with `{dotted.path}` and `{base}`."""

    def over(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with its run written out once for each combination."""
        if config.run is None:
            hint = "Give a config with `run`, or write the axes into its `matrix`."
            raise ConfigError(Problem("a Sweep varies a single run, and this config has several", hint=hint))
        axes = {path: list(values) for path, values in self.axes.items()}
        base = config.run.model_dump(mode="json", exclude_unset=True)
        matrix = MatrixSpec(base_run=base, axes=axes, name_template=self.name_template)
        return config.model_copy(update={"run": None, "matrix": matrix}).expanded()
