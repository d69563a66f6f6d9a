"""All arms of an experiment, one after the other, each recorded whatever becomes of it.

result = Experiment.from_yaml("config.yaml").run()
for run in result.runs:
    print(run.run_id, run.status, run.metrics)
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig, load_yaml
from ..config.deep import deep_problems
from ..errors import ConfigError
from ..protocols import RunResult
from ..registry import get_callback
from ..training.callback import Callback, RunControl
from .arms import Arm, expand_arms
from .availability import refuse_unavailable
from .record_dir import ExperimentDir, open_experiment_dir, read_result
from .runner import ArmOptions, run_arm

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """What became of every arm."""

    name: str
    path: Path
    runs: list[RunResult] = field(default_factory=list[RunResult])
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 all trained and scored, 2 an arm failed or is unscored, 130 interrupted."""
        if self.interrupted:
            return 130
        bad = any(run.status != "completed" or "unscored" in run.extras for run in self.runs)
        return 2 if bad else 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed by `evsys run --json`."""
        runs = [
            {key: getattr(run, key) for key in ("run_id", "status", "metrics", "artifacts", "error", "extras")}
            for run in self.runs
        ]
        return {"name": self.name, "path": str(self.path), "interrupted": self.interrupted, "runs": runs}


class Experiment:
    """One experiment: validated, expanded into arms, trained, scored, recorded."""

    def __init__(self, config: ExperimentConfig, *, callbacks: Sequence[Callable[[], Callback]] = ()) -> None:
        """`callbacks` makes observers beside the config's own, e.g. the command line's progress display."""
        self.config = config.expanded()
        self._extra_callbacks = callbacks

    @classmethod
    def from_yaml(cls, path: str | Path, **options: Any) -> Experiment:
        return cls(load_yaml(path), **options)

    def run(self, *, resume: bool = False) -> ExperimentResult:
        """Run every arm; arms that already have a result are not repeated on resume."""
        self.validate()
        folder = open_experiment_dir(self.config, resume=resume)
        control = RunControl()
        results: list[RunResult] = []
        with _stop_on_interrupt(control):
            for arm in expand_arms(self.config):
                results.append(self._run_or_recall(arm, folder, control, resume=resume))
                if control.interrupted:
                    break
        return ExperimentResult(self.config.name, folder.path, results, interrupted=control.interrupted)

    def validate(self) -> None:
        """Check everything that can be checked before anything is spent."""
        refuse_unavailable(self.config)
        if problems := deep_problems(self.config):
            raise ConfigError(problems)

    def _run_or_recall(self, arm: Arm, folder: ExperimentDir, control: RunControl, *, resume: bool) -> RunResult:
        run_dir = folder.run_dir(arm.id)
        recorded = read_result(run_dir) if resume else None
        if recorded is not None and recorded["status"] == "completed":
            keys = ("run_id", "status", "metrics", "artifacts", "error", "extras")
            return RunResult(**{key: recorded[key] for key in keys})
        specs = self.config.callbacks
        callbacks = [get_callback(spec.kind)(**spec.params) for spec in specs] + [
            make() for make in self._extra_callbacks
        ]
        return run_arm(arm, self.config, ArmOptions(run_dir, resume=resume, callbacks=callbacks, control=control))


def run_experiment(config: ExperimentConfig | str | Path) -> list[RunResult]:
    """Run an experiment given as a config or as a YAML path, and return the result of each run."""
    experiment = Experiment(config) if isinstance(config, ExperimentConfig) else Experiment.from_yaml(config)
    return experiment.run().runs


@contextmanager
def _stop_on_interrupt(control: RunControl) -> Generator[None]:
    """The first Ctrl-C asks for a clean stop with a checkpoint; the second one does not ask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(signum: int, frame: Any) -> None:
        control.stop(INTERRUPTED, interrupted=True)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
