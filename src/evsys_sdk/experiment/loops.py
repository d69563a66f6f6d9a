"""Record your own training loop as an experiment.

    with evsys_sdk.record("expert-iteration", model="SmolLM2-135M-Instruct", benchmark=[...], seeds=3) as experiment:
        for run in experiment.runs():               # each arm with each seed that is not finished
            for step in run.steps(20): ...
    print(experiment.result.conclusion)

The experiment runs on a thread. It opens each run and waits until the loop has trained it. Starting the same script
again resumes it; a changed script starts a new attempt.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from pydantic import ValidationError

from ..algorithms.loop_run import LoopRun
from ..algorithms.script import INTERACTIVE, current_run, taking_runs
from ..config import ExperimentConfig
from ..config.checks.problems import problems_in
from ..errors import ConfigError, TrainingError
from ..paths import project_root
from ..settings import import_project_code
from .arms.interrupts import Interrupt, stop_on_interrupt
from .arms.results import ExperimentResult
from .experiment import Experiment
from .launchers.local import LocalLauncher


class RecordedExperiment:
    """An experiment whose runs are trained by the caller's loop."""

    def __init__(self, config: ExperimentConfig, *, fresh: bool = False, script: LoopRun | None = None) -> None:
        """`script` is the active run when the calling script is itself the recipe of an experiment."""
        self.config, self._script = config, script
        self.result: ExperimentResult | None = None
        """The result with its conclusion; set at the end of the block."""
        self._fresh, self._interrupt = fresh, Interrupt()
        self._arrivals: SimpleQueue[LoopRun | None] = SimpleQueue()
        """Runs to train; None when there are no more."""
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._next: LoopRun | None = script
        self._active: LoopRun | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="evsys-experiment", daemon=True)
        self._ending = ExitStack()

    def runs(self) -> Generator[LoopRun]:
        """Every arm with each of its seeds, one after another."""
        while (run := self._next) is not None:
            self._active = run
            yield run
            self._release(None)

    def __enter__(self) -> Self:
        if self._script is not None:
            return self
        self._interrupt = self._ending.enter_context(stop_on_interrupt())
        self._ending.enter_context(taking_runs(self._hand_over))
        self._thread.start()
        self._next = self._arrivals.get()
        if self._failure is not None:  # e.g. the config has problems
            self._ending.close()
            raise self._failure
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._script is not None:
            return
        with self._ending:
            if error is not None or (self._next is not None and self._next is not self._active):
                self._interrupt.is_requested = True  # stop here; the experiment can be resumed
            self._release(error)
            while (run := self._next) is not None:
                self._active, self._interrupt.is_requested = run, True
                self._release(TrainingError(f"the loop ended before run '{run.name}' was trained."))
            self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _release(self, error: BaseException | None) -> None:
        """Tell the experiment how the active run ended, and wait for the next run."""
        active, self._active, self._next = self._active, None, None if self._active else self._next
        if active is not None and self._script is None:
            self._answers.put(error)
            self._next = self._arrivals.get()

    def _hand_over(self, run: LoopRun) -> None:
        """On the experiment's thread: give a run to the loop and wait until it is trained."""
        self._arrivals.put(run)
        error = self._answers.get()
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise TrainingError(f"the loop was ended by {type(error).__name__}.")

    def _work(self) -> None:
        try:
            experiment = Experiment(self.config, launcher=LocalLauncher(arms_in="threads"))
            self.result = experiment.run(fresh=self._fresh, interrupt=self._interrupt)
        except BaseException as error:
            self._failure = error
        finally:
            self._arrivals.put(None)


def record(
    name: str,
    *,
    model: str,
    backend: str | Mapping[str, Any] = "local",
    hypothesis: str | Mapping[str, Any] | None = None,
    benchmark: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int = 1,
    seed: int = 0,
    lora_rank: int = 32,
    data: Mapping[str, Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    budget: Mapping[str, Any] | None = None,
    success_metric: str | Mapping[str, Any] | None = None,
    fresh: bool = False,
    **fields: Any,
) -> RecordedExperiment:
    """Record the loop inside the block as an experiment; the module's docstring has an example.

    `arms` maps the name of each arm to its `run.args`; every arm is trained with `seeds` seeds. `benchmark`,
    `hypothesis`, `success_metric`, `budget` and `data` are as in YAML (`rows` are training rows in memory), and
    `fields` are further fields of the experiment, e.g. `description`, `callbacks`, `output_dir` or `metadata`. If the
    script is itself the recipe of an experiment, the config of that experiment is used instead.
    """
    if (run := current_run()) is not None:
        return RecordedExperiment(run.config, script=run)
    import_project_code()
    metadata: dict[str, Any] = dict(fields.pop("metadata", {}))
    optional = {"hypothesis": hypothesis, "benchmark": benchmark, "success_metric": success_metric}
    metadata |= {key: value for key, value in optional.items() if value is not None}
    if rows is not None:
        data = {"source_kind": "in_memory", "rows": list(rows)}
    runs = [
        {
            "name": arm,
            "model": {"name": model},
            "backend": {"kind": backend} if isinstance(backend, str) else dict(backend),
            "algorithm": {
                "kind": "script",
                "params": {**_calling_script(), "args": args, "lora_rank": lora_rank},
            },
            "seed": seed,
            **({"data": data} if data is not None else {}),
        }
        for arm, args in (arms or {name: {}}).items()
    ]
    config = {"name": name, "runs": runs, "n_repeats": seeds, "budget": budget, "metadata": metadata, **fields}
    return RecordedExperiment(_validate(config), fresh=fresh)


def _validate(fields: dict[str, Any]) -> ExperimentConfig:
    config = {key: value for key, value in fields.items() if value is not None}
    try:
        return ExperimentConfig.model_validate(config)
    except ValidationError as error:
        raise ConfigError(problems_in(error, model=ExperimentConfig, data=config)) from None


def _calling_script() -> dict[str, Any]:
    """The path and the hash of the running script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is None or not Path(file).is_file():
        return {"file": INTERACTIVE}
    path = Path(file).resolve()
    root = project_root().resolve()
    return {
        "file": str(path.relative_to(root) if path.is_relative_to(root) else path),
        "sha256": sha256(path.read_bytes()).hexdigest(),
    }
