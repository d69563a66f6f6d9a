"""An experiment from its config to its conclusion. Read `Experiment.run` to know what that is.

result = Experiment.from_yaml("config.yaml").run()
for arm in result.arms:
    print(arm.name, arm.status, arm.metrics)
print(result.best_arm, result.conclusion)
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._version import __version__
from ..config import ExperimentConfig, LauncherSpec, load_yaml
from ..config.deep import deep_problems
from ..errors import ConfigError
from ..log import get_logger
from ..protocols import RunResult
from ..registry import get_launcher
from ..training.callback import Callback
from . import journal as events
from .allocation import Allocation, EveryArm
from .arms import Arm, expand_arms, folder_problems
from .benchmark_plan import benchmark_problems
from .interrupts import Interrupt, stop_on_interrupt
from .journal import Journal
from .launcher import Launch, Launcher
from .locks import folder_lock
from .record_dir import ExperimentDir, open_experiment_dir
from .results import ArmResult, ExperimentResult, ExperimentStatus
from .scheduler import ArmScheduler


class Experiment:
    """One experiment: validated, expanded into arms, trained, scored, recorded, concluded."""

    def __init__(self, config: ExperimentConfig, *, callbacks: Sequence[Callable[[], Callback]] = ()) -> None:
        """`callbacks` makes observers beside the config's own, e.g. the command line's progress display."""
        self.config = config.expanded()
        self._extra_callbacks = callbacks

    @classmethod
    def from_yaml(cls, path: str | Path, **options: Any) -> Experiment:
        return cls(load_yaml(path), **options)

    def run(self, *, resume: bool = False, fresh: bool = False) -> ExperimentResult:
        """Run every arm and conclude. An attempt that was not finished is taken up again, unless `fresh`.

        With `resume` the latest attempt is taken up even if it was: arms that failed or are unscored are tried again.
        """
        folder = self.open(resume=resume, fresh=fresh)
        what, remedy = f"the experiment in {folder.path}", "Wait for it, or stop it with `evsys cancel`."
        with (
            folder_lock(folder.path, what=what, remedy=remedy),
            Journal.of(folder.path) as journal,
            stop_on_interrupt() as interrupt,
        ):
            self._announce(folder, journal)
            arms = self._train(folder, journal, interrupt)
            result = self._concluded(folder, journal, arms, self._status(arms, interrupt))
            journal.append(events.ENDED, status=result.status)
        return result

    def open(self, *, resume: bool = False, fresh: bool = False) -> ExperimentDir:
        """Check everything and find or make the folder; nothing is trained yet."""
        self.validate()
        return open_experiment_dir(self.config, resume=resume, fresh=fresh)

    def validate(self) -> None:
        """Check everything that can be checked before anything is spent."""
        problems = [*deep_problems(self.config), *folder_problems(self.arms)]
        if problems := problems or benchmark_problems(self.config.metadata):
            raise ConfigError(problems)

    @property
    def arms(self) -> list[Arm]:
        """Every run with each of its seeds, in the order they are trained."""
        return expand_arms(self.config)

    def _announce(self, folder: ExperimentDir, journal: Journal) -> None:
        """Fix what is going to be tested, before the first step."""
        known = events.experiment_id(folder.path)
        if known is not None:
            get_logger(__name__).info("going on with %s", folder.path)
            journal.append(events.RESUMED, experiment_id=known)
            return
        metadata = self.config.metadata
        journal.append(
            events.STARTED,
            experiment_id=f"{folder.path.name}-{secrets.token_hex(4)}",
            name=self.config.name,
            config_sha256=_sha256(self.config),
            hypothesis=None,
            hypothesis_sha256=None,
            sdk_version=__version__,
            arms=[{"arm": arm.name, "arm_id": arm.id, "run": arm.of_run, "seed": arm.seed} for arm in self.arms],
            parent_experiment_id=self.config.parent_experiment_id,
            tags=metadata.tags,
        )

    def _train(self, folder: ExperimentDir, journal: Journal, interrupt: Interrupt) -> list[ArmResult]:
        allocation: Allocation = EveryArm(self.arms)
        launcher = self._launcher()
        launch = Launch(self.config, folder.path.resolve(), self._max_concurrent(), self._extra_callbacks)
        try:
            slots = launcher.open(launch, len(self.arms))
            scheduler = ArmScheduler(
                self.config, folder, journal, launcher, allocation, slots, stop_reason=lambda: interrupt.reason
            )
            interrupt.tell = scheduler.interrupt
            return scheduler.run()
        finally:
            launcher.close()

    def _launcher(self) -> Launcher:
        spec = self.config.launcher or LauncherSpec(kind="local")
        return get_launcher(spec.kind)(**spec.params)

    def _max_concurrent(self) -> int | None:
        """One arm at a time, unless the config says how many, or names a launcher that knows."""
        return self.config.max_concurrent_arms or (None if self.config.launcher else 1)

    def _status(self, arms: Sequence[ArmResult], interrupt: Interrupt) -> ExperimentStatus:
        if interrupt.asked:
            return "interrupted"
        return "completed" if all(arm.is_scored for arm in arms) else "failed"

    def _concluded(
        self, folder: ExperimentDir, journal: Journal, arms: list[ArmResult], status: ExperimentStatus
    ) -> ExperimentResult:
        """The result with what follows from it; an experiment that will go on has nothing to conclude yet."""
        known = events.experiment_id(folder.path) or folder.path.name
        return ExperimentResult(self.config.name, folder.path, arms, status, known, None)


def run_experiment(config: ExperimentConfig | str | Path) -> list[RunResult]:
    """Run an experiment given as a config or as a YAML path, and return the result of each run."""
    experiment = Experiment(config) if isinstance(config, ExperimentConfig) else Experiment.from_yaml(config)
    return experiment.run().runs


def _sha256(config: ExperimentConfig) -> str:
    content = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
