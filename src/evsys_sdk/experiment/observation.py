"""Record a run while it trains: `with observe_run(arm, options)`.

Inside the block, spend is metered, rollouts are recorded and diagnosed, trained-on tasks and foreign weights are noted,
and the identity of the arm is written before its first step. At the end the result is completed and stored; an error
inside the block becomes a failed result.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ExperimentConfig, RunConfig
from ..data.task_identity import row_texts
from ..errors import TrainingError
from ..paths import in_project
from ..protocols import Algorithm, RunContext, RunResult, traits_of
from ..record.events import load_events, note_loaded_weights, note_trained_tasks, read_trained_tasks
from ..record.folders import begin_run, note_identity, note_length
from ..record.run_files.checkpoints import CheckpointLog
from ..spend.metered_client import MeteredClient
from ..training.callback import Observers, RunInfo
from ..training.diagnosis import Diagnosis
from ..training.leak_detector import LeakDetector
from ..training.rollout_recorder import RolloutRecorder
from ..training.services import services_of
from .arms.arm import Arm
from .arms.recipe import count_steps
from .arms.results import fail_run
from .arms.rows import RowLoader
from .audit.identity import identify_run
from .record_dir import write_result
from .run_benchmarks import RunBenchmarks

if TYPE_CHECKING:
    from .runner import ArmOptions


@contextmanager
def observe_run(arm: Arm, options: ArmOptions) -> Generator[RunObservation]:
    """Observe the run inside the block; its result is on disk afterwards."""
    observed, process = RunObservation(arm, options), os.getpid()
    try:
        yield observed
    except SystemExit as error:
        failure = TrainingError(f"the code of the run called sys.exit({error.code!r}). Raise an error instead.")
        observed.result = fail_run(arm.name, failure)
    except Exception as error:
        observed.result = fail_run(arm.name, error)
    if os.getpid() != process:
        os._exit(1)  # a process that the run's code forked; only its parent writes the record
    observed.finish()


class RunObservation:
    """The observers of one run, and its result."""

    def __init__(self, arm: Arm, options: ArmOptions) -> None:
        self.arm, self.options = arm, options
        self.observers = Observers([])
        self.result = RunResult(arm.name, "failed", error="the run did not end")
        self._leaks: LeakDetector | None = None

    @property
    def run(self) -> RunConfig:
        return self.arm.run

    @property
    def run_dir(self) -> Path:
        return self.options.run_dir

    def begin(self) -> int:
        """Open the run's folder, make the observers and return the number of this attempt."""
        attempt = begin_run(self.run_dir, self.run.model_dump(mode="json"))
        for make in self.options.callbacks:
            self.observers.add(make())
        if self.options.meter is not None:
            self.observers.add(self.options.meter)
        self.observers.add(RolloutRecorder(self.run.rollouts))
        self.observers.add(Diagnosis())
        return attempt

    def meter(self, handles: dict[str, Any]) -> dict[str, Any]:
        """Replace the training client in the handles by one that counts what it spends."""
        client, meter = handles.get("training_client"), self.options.meter
        return handles if meter is None or client is None else {**handles, "training_client": meter.watch(client)}

    def start(
        self, ctx: RunContext, algorithm: Algorithm, benchmarks: RunBenchmarks | None, load_rows: RowLoader
    ) -> RunInfo:
        """Watch the client, write the identity of the run, and tell all observers that it starts."""
        services, rows = services_of(ctx), ctx.extras["train_rows"]
        if isinstance(services.client, MeteredClient):
            self._detect_foreign_weights(services.client)
            if benchmarks is not None:
                self._detect_trained_tasks(services.client, benchmarks, resumed=services.attempt > 1)
        last = CheckpointLog.in_dir(self.run_dir).last() if services.resume else None
        info = replace(
            self._describe(ctx.config, algorithm),
            total_steps=count_steps(self.run, algorithm, load_rows),
            steps_done=last.next_step if last else 0,
            repeats=benchmarks.repeats(last) if benchmarks else (),
        )
        note_length(self.run_dir, info.total_steps, measure=info.measure, mode=info.measure_mode)
        planned = benchmarks.planned if benchmarks else ()
        note_identity(self.run_dir, identify_run(self.run, load_rows, planned))
        self.observers.on_run_start(info, services.control)
        ctx.log_store.log_hyperparams(_hyperparams(ctx.config, self.run))
        if rows:
            self.observers.on_data(rows)
        return info

    def finish(self) -> None:
        """Add what was observed to the result, and store it."""
        result, meter = self.result, self.options.meter
        if self._leaks is not None:
            result.notes.trained_on = self._leaks.summarise()
        observers = self.observers
        for step in (self._note_findings, partial(observers.on_run_end, result), observers.close):
            try:
                step()
            except TrainingError as error:  # a callback called sys.exit
                if result.status != "failed":
                    self.result = result = fail_run(result.run_id, error)
        if meter is not None:
            result.notes.spend = meter.spent().to_dict()
        # Stored last: a run that has a result is complete on disk.
        try:
            write_result(self.run_dir, result, hparams=self.run.model_dump(mode="json"))
        except Exception as error:  # a run that cannot be recorded has failed; the other arms continue
            self.result = fail_run(result.run_id, error)

    def _note_findings(self) -> None:
        self.result.notes.findings = self.observers.findings() or None

    def _describe(self, config: ExperimentConfig, algorithm: Algorithm) -> RunInfo:
        hypothesis, traits = config.metadata.hypothesis, traits_of(algorithm)
        return RunInfo(
            experiment=config.name,
            run_id=self.arm.name,
            run_dir=self.run_dir,
            config=self.run.model_dump(mode="json"),
            hypothesis=hypothesis if hypothesis is None or isinstance(hypothesis, str) else hypothesis.claim,
            measure=traits.selection_metric,
            measure_mode=traits.selection_mode,
        )

    def _detect_trained_tasks(self, client: MeteredClient, benchmarks: RunBenchmarks, *, resumed: bool) -> None:
        """Note every benchmark task that is trained on, in this attempt or an earlier one."""
        run_dir = self.run_dir
        texts = {
            f"{plan.split}/{plan.label}": {
                task.task_id: "\n".join(row_texts(task.instruction)) for task in plan.benchmark.tasks
            }
            for plan in benchmarks.planned
        }
        known = read_trained_tasks(load_events(run_dir.parent)).get(run_dir.name) if resumed else None
        self._leaks = LeakDetector(texts, client.tokenizer, known=known, report=partial(note_trained_tasks, run_dir))
        client.on_batch = self._leaks.check

    def _detect_foreign_weights(self, client: MeteredClient) -> None:
        """Note weights that the client loads although the config does not name them and this run did not save them."""
        model, run_dir, saved = self.run.model, self.run_dir, client.saved
        named = [run_dir, *filter(None, (model.init_from_checkpoint, model.load_checkpoint_path))]
        places = [in_project(place).resolve() for place in named]

        def check(ref: str) -> None:
            known = ref in saved or any(in_project(ref).resolve().is_relative_to(place) for place in places)
            if not known and ref not in {checkpoint.state for checkpoint in CheckpointLog.in_dir(run_dir).read()}:
                note_loaded_weights(run_dir, ref)

        client.on_load = check


def _hyperparams(config: ExperimentConfig, run: RunConfig) -> dict[str, Any]:
    return {
        "experiment": config.name,
        "run": run.name,
        "model": run.model.name,
        "backend": run.backend.kind,
        "algorithm": run.algorithm.kind,
        **run.algorithm.params,
        "seed": run.seed,
        "tags": run.tags,
    }
