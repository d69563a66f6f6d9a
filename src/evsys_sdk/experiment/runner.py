"""One arm, from its config to its result. Read `train_and_score` to know what a run is."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig, RunConfig
from ..data.task_identity import row_texts
from ..errors import BackendError, EvsysError, TrainingError, blame_user_code, show
from ..eval.run_eval import RunEvaluator
from ..eval.verifier import verify_with
from ..inference.renderer import get_renderer
from ..log import get_logger
from ..paths import in_project
from ..protocols import Algorithm, DataStore, LogStore, Row, RunContext, RunNotes, RunResult, traits_of
from ..record.events import load_events, note_loaded_weights, note_trained_tasks, read_trained_tasks
from ..record.folders import begin_run, note_identity, note_length
from ..record.run_files.checkpoints import CheckpointLog
from ..registry import get_data_store, get_log_store
from ..spend.meter import BudgetMeter
from ..spend.metered_client import MeteredClient
from ..training.blocking import run_blocking
from ..training.callback import Callback, Observers, RunControl, RunInfo
from ..training.diagnosis import Diagnosis
from ..training.rollout_recorder import RolloutRecorder
from ..training.services import RunServices, Selection
from ..training.trained_tasks import TrainedTasks
from .arms.arm import Arm
from .arms.observed_log_store import LogStoreCallback, ObservedLogStore, fill_log_dir
from .arms.recipe import build_algorithm, build_backend, prepare_backend
from .arms.results import lift_notes
from .arms.rows import RowLoader, content_hash
from .audit.identity import identify_run
from .audit.replaced_code import find_replaced_code
from .benchmark_plan import plan_benchmarks, selection
from .record_dir import write_result
from .run_benchmarks import RunBenchmarks


@dataclass(frozen=True, slots=True)
class ArmOptions:
    """How an arm is run, apart from what it is."""

    run_dir: Path
    resume: bool = False
    callbacks: Sequence[Callable[[], Callback]] = ()
    """Make the observers of the arm."""
    control: RunControl = field(default_factory=RunControl)
    meter: BudgetMeter | None = None
    """Counts what the arm spends, and stops it when that is enough."""


def run_arm(arm: Arm, config: ExperimentConfig, options: ArmOptions) -> RunResult:
    """Train and score one arm; whatever goes wrong inside it becomes its result."""
    observers, owner = Observers([]), os.getpid()
    try:
        result = train_and_score(arm, config, options, observers)
    except SystemExit as error:
        wish = TrainingError(f"the code of the run called sys.exit({error.code!r}). Raise an error instead.")
        result = fail_run(arm.name, wish)
    except Exception as error:
        result = fail_run(arm.name, error)
    if os.getpid() != owner:
        os._exit(1)  # a fork that the run's code has made and let go on; the record is its parent's
    result.notes.findings = observers.findings() or None
    result.notes.replaced_code = find_replaced_code() or None
    observers.on_run_end(result)
    observers.close()
    if options.meter is not None:
        result.notes.spend = options.meter.spent().to_dict()
    # Written last: a run with a result is over, and everything else about it is on disk.
    return _write_down(options.run_dir, arm.run, result)


def train_and_score(arm: Arm, config: ExperimentConfig, options: ArmOptions, observers: Observers) -> RunResult:
    """The flow of a run: rows, recipe and backend; what scores it; training; and the scores that are still missing."""
    run, run_dir = arm.run, options.run_dir
    attempt = begin_run(run_dir, run.model_dump(mode="json"))
    add_observers(observers, options, run)
    data_store, log_store = open_stores(config, run_dir, observers)
    load_rows = RowLoader(data_store, run_dir)
    rows = load_rows(run.data) if run.data else []
    algorithm = build_algorithm(run)
    backend = build_backend(run, algorithm)
    with ExitStack() as ending:
        handles = ending.enter_context(prepare_backend(backend, run, algorithm, run_dir))
        handles = meter_client(handles, options.meter)
        services = offer_services(run, handles, observers, options, load_rows, attempt)
        evaluator, services = add_evaluator(run, rows, services)
        benchmarks, services = add_benchmarks(config, run, algorithm, services, options)
        if benchmarks is not None:
            # Entered after the backend, so that no scoring asks for samples of one that is torn down.
            ending.callback(benchmarks.close)
        trained = watch_for_tasks(services, benchmarks, run_dir)
        watch_for_weights(services, run, run_dir)
        extras: dict[str, Any] = {"train_rows": rows, "n_train_rows": len(rows), "backend_handles": handles}
        extras |= {"model_name": run.model.name, "tags": run.tags}
        ctx = RunContext(arm.name, run_dir, config, data_store, log_store, backend, extras, services)
        info = announce_run(ctx, run, algorithm, services, benchmarks)
        if benchmarks is not None and not info.steps_done:
            # Once there is a checkpoint they are on record, because they come before the first step.
            benchmarks.score_baselines()
        result = train(algorithm, ctx)
        result.notes.trained_on = None if trained is None else trained.summarise()
        if result.status == "completed":
            score_if_missing(evaluator, run, result)
        if benchmarks is not None:
            benchmarks.finish(result)
        return result


def add_observers(observers: Observers, options: ArmOptions, run: RunConfig) -> None:
    """Make everyone who watches the arm; one that cannot be made fails the run."""
    for make in options.callbacks:
        observers.add(make())
    if options.meter is not None:
        observers.add(options.meter)
    observers.add(RolloutRecorder(run.rollouts))
    observers.add(Diagnosis())


def open_stores(config: ExperimentConfig, run_dir: Path, observers: Observers) -> tuple[DataStore, LogStore]:
    """Where rows come from and where metrics go; whoever logs, the log store and the observers hear the same."""
    data_store: DataStore = get_data_store(config.data_store.kind)(**config.data_store.params)
    log_store: LogStore = get_log_store(config.log_store.kind)(**fill_log_dir(config.log_store, run_dir))
    observers.add(LogStoreCallback(log_store))
    return data_store, ObservedLogStore(log_store, observers)


def meter_client(handles: dict[str, Any], meter: BudgetMeter | None) -> dict[str, Any]:
    """Put a client among the handles through which nothing is spent uncounted."""
    client = handles.get("training_client")
    return handles if meter is None or client is None else {**handles, "training_client": meter.watch(client)}


def offer_services(
    run: RunConfig,
    handles: dict[str, Any],
    observers: Observers,
    options: ArmOptions,
    load_rows: RowLoader,
    attempt: int,
) -> RunServices:
    """Gather what a recipe may ask of the run."""
    client = handles.get("training_client")
    return RunServices(
        observers=observers,
        control=options.control,
        verify=verify_with(),
        load_rows=load_rows,
        client=client,
        renderer=None if client is None else get_renderer(client.tokenizer, run.model.renderer_name),
        seed=run.seed,
        attempt=attempt,
        resume=options.resume,
    )


def add_evaluator(
    run: RunConfig, rows: Sequence[Row], services: RunServices
) -> tuple[RunEvaluator | None, RunServices]:
    """Have the recipe score the rows of `run.eval`, where the backend trains through a client."""
    if services.client is None or services.renderer is None:
        return None, services
    evaluator = RunEvaluator(run.eval, services.client, services.renderer, services.observers, services.load_rows, rows)
    metric = evaluator.selection_metric
    return evaluator, replace(
        services,
        evaluate=evaluator if evaluator.wanted else None,
        score_stage=evaluator.score_stage if evaluator.scores_stages else None,
        selection=None if metric is None else Selection(metric),
    )


def add_benchmarks(
    config: ExperimentConfig, run: RunConfig, algorithm: Algorithm, services: RunServices, options: ArmOptions
) -> tuple[RunBenchmarks | None, RunServices]:
    """Load the benchmarks of the experiment and have the loop score those that are due during training."""
    if not config.metadata.benchmark:
        return None, services
    if services.client is None or services.renderer is None:
        raise BackendError(
            f"the backend '{run.backend.kind}' gives no training_client, so that metadata.benchmark cannot be scored. "
            "Return one from prepare(), or remove the benchmarks."
        )
    planned = plan_benchmarks(config.metadata, algorithm, seed=run.seed)
    identity = f"{run.backend.kind} {run.model.name} {content_hash([run.model.model_dump(mode='json')])[:8]} {run.seed}"
    benchmarks = RunBenchmarks(
        planned,
        services.client,
        services.renderer,
        services.observers,
        options.run_dir,
        services.attempt,
        identity,
    )
    chosen = selection(planned, config.metadata)
    return benchmarks, replace(
        services,
        scoring=benchmarks.background_scoring(),
        selection=services.selection if chosen is None else Selection(*chosen),
    )


def watch_for_tasks(services: RunServices, benchmarks: RunBenchmarks | None, run_dir: Path) -> TrainedTasks | None:
    """Notice every task of the benchmarks that the client is given to learn, now or before it was killed."""
    client = services.client
    if benchmarks is None or not isinstance(client, MeteredClient):
        return None
    asked = {
        f"{one.split}/{one.label}": {
            task.task_id: "\n".join(row_texts(task.instruction)) for task in one.benchmark.tasks
        }
        for one in benchmarks.planned
    }
    known = read_trained_tasks(load_events(run_dir.parent)).get(run_dir.name) if services.attempt > 1 else None
    trained = TrainedTasks(asked, client.tokenizer, known=known, tell=partial(note_trained_tasks, run_dir))
    client.hear = trained.look
    return trained


def watch_for_weights(services: RunServices, run: RunConfig, run_dir: Path) -> None:
    """Notice weights that the client is told to load and that neither the config names nor this run has saved."""
    client = services.client
    if not isinstance(client, MeteredClient):
        return
    own = [run_dir, *filter(None, (run.model.init_from_checkpoint, run.model.load_checkpoint_path))]
    places = [in_project(place).resolve() for place in own]
    saved = client.saved

    def look(ref: str) -> None:
        known = ref in saved or any(in_project(ref).resolve().is_relative_to(place) for place in places)
        if not known and ref not in {one.state for one in CheckpointLog.in_dir(run_dir).read()}:
            note_loaded_weights(run_dir, ref)

    client.hear_load = look


def announce_run(
    ctx: RunContext, run: RunConfig, algorithm: Algorithm, services: RunServices, benchmarks: RunBenchmarks | None
) -> RunInfo:
    """Tell everyone who watches what is about to happen, and from which step on."""
    rows: list[Row] = ctx.extras["train_rows"]
    last = CheckpointLog.in_dir(ctx.output_dir).last() if services.resume else None
    hypothesis, traits = ctx.config.metadata.hypothesis, traits_of(algorithm)
    info = RunInfo(
        experiment=ctx.config.name,
        run_id=ctx.run_id,
        run_dir=ctx.output_dir,
        config=run.model_dump(mode="json"),
        total_steps=plan_steps(algorithm, rows),
        steps_done=last.next_step if last else 0,
        hypothesis=hypothesis if hypothesis is None or isinstance(hypothesis, str) else hypothesis.claim,
        measure=traits.selection_metric,
        measure_mode=traits.selection_mode,
        repeats=benchmarks.repeats(last) if benchmarks else (),
    )
    note_length(ctx.output_dir, info.total_steps, measure=info.measure, mode=info.measure_mode)
    note_identity(ctx.output_dir, identify_run(run, services.load_rows, benchmarks.planned if benchmarks else ()))
    services.observers.on_run_start(info, services.control)
    ctx.log_store.log_hyperparams(_hyperparams(ctx.config, run))
    if rows:
        services.observers.on_data(rows)
    return info


def plan_steps(algorithm: Algorithm, rows: Sequence[Row]) -> int | None:
    """How many steps an algorithm will take, where it knows."""
    traits = traits_of(algorithm)
    return traits.planned_steps(rows) if traits.planned_steps is not None else traits.max_steps


def train(algorithm: Algorithm, ctx: RunContext) -> RunResult:
    """Let the recipe train; this is where the hours go."""
    result: Any = algorithm.train(ctx)
    if not isinstance(result, RunResult):
        name = getattr(algorithm, "name", type(algorithm).__name__)
        raise TrainingError(f"train() of the algorithm '{name}' returned {show(result)}. Return a RunResult.")
    return lift_notes(result)


def score_if_missing(evaluator: RunEvaluator | None, run: RunConfig, result: RunResult) -> None:
    """Score what the recipe did not score itself; an arm without scores is marked, so that it cannot win."""
    if evaluator is None:
        if run.eval.enabled and run.eval.metrics:
            result.notes.unscored = f"the backend '{run.backend.kind}' gives no training_client to sample from"
        return
    missing = evaluator.wanted and not all(key in result.metrics for key in evaluator.keys)
    if missing and evaluator.failure is None:
        result.metrics |= run_blocking(lambda: evaluator(int(result.metrics.get("steps", 0))))
    if evaluator.failure is not None:
        result.notes.unscored = evaluator.failure


def fail_run(run_id: str, error: Exception) -> RunResult:
    """The result of a run that raised: one sentence for expected errors, place and traceback for bugs."""
    get_logger(__name__).info("run '%s' failed: %s", run_id, error)  # whoever watches the run is told as well
    expected = isinstance(error, EvsysError | OSError)
    notes = RunNotes(traceback=None if expected else traceback.format_exc(), retryable=_may_pass(error) or None)
    place = "" if expected else blame_user_code(error)
    at = f" (at {place})" if place else ""
    return RunResult(run_id, "failed", error=f"{type(error).__name__}: {error}{at}", notes=notes)


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


def _may_pass(error: Exception) -> bool:
    """Whether the same arm may succeed when it is tried again: not if its config, its data or its loss is wrong."""
    return isinstance(error, BackendError) or not isinstance(error, EvsysError)


def _write_down(run_dir: Path, run: RunConfig, result: RunResult) -> RunResult:
    """Put the result on disk; a run that cannot be recorded has failed, and the other arms go on."""
    try:
        write_result(run_dir, result, hparams=run.model_dump(mode="json"))
    except Exception as error:
        return fail_run(result.run_id, error)
    return result
