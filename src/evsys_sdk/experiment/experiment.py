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
from functools import partial
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig, load_yaml
from ..config.deep import deep_problems
from ..errors import ConfigError
from ..protocols import RunResult
from ..registry import get_callback
from ..training.callback import Callback, RunControl
from .arms import Arm, expand_arms, folder_problems
from .benchmark_plan import benchmark_problems
from .record_dir import ExperimentDir, open_experiment_dir, read_result
from .result_json import result_to_dict
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
        runs = [result_to_dict(run) for run in self.runs]
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
        results: list[RunResult] = []
        with _stop_on_interrupt() as interrupt:
            for arm in expand_arms(self.config):
                if interrupt.asked:
                    break
                results.append(self._run_or_recall(arm, folder, interrupt.new_control(), resume=resume))
        return ExperimentResult(self.config.name, folder.path, results, interrupted=interrupt.asked)

    def validate(self) -> None:
        """Check everything that can be checked before anything is spent."""
        problems = [*deep_problems(self.config), *folder_problems(expand_arms(self.config))]
        if problems := problems or benchmark_problems(self.config.metadata):
            raise ConfigError(problems)

    def _run_or_recall(self, arm: Arm, folder: ExperimentDir, control: RunControl, *, resume: bool) -> RunResult:
        run_dir = folder.run_dir(arm.id)
        recorded = read_result(run_dir) if resume else None
        if recorded is not None and recorded.status == "completed" and "unscored" not in recorded.extras:
            return recorded
        own = [partial(get_callback(spec.kind), **spec.params) for spec in self.config.callbacks]
        callbacks = [*own, *self._extra_callbacks]
        return run_arm(arm, self.config, ArmOptions(run_dir, resume=resume, callbacks=callbacks, control=control))


def run_experiment(config: ExperimentConfig | str | Path) -> list[RunResult]:
    """Run an experiment given as a config or as a YAML path, and return the result of each run."""
    experiment = Experiment(config) if isinstance(config, ExperimentConfig) else Experiment.from_yaml(config)
    return experiment.run().runs


@dataclass(slots=True)
class _Interrupt:
    """Whether Ctrl-C was pressed, and the arm that has to hear of it."""

    asked: bool = False
    _control: RunControl = field(default_factory=RunControl)

    def new_control(self) -> RunControl:
        """The control of the next arm: what stopped one arm early must not stop the others."""
        self._control = RunControl()
        if self.asked:
            self.ask()
        return self._control

    def ask(self) -> None:
        self.asked = True
        self._control.stop(INTERRUPTED, interrupted=True)


@contextmanager
def _stop_on_interrupt() -> Generator[_Interrupt]:
    """The first Ctrl-C asks for a clean stop with a checkpoint; the second one does not ask."""
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def handle(signum: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        interrupt.ask()

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
