"""One arm, from its config to its result. Read `run_arm` to know what a run is."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import ExperimentConfig, RunConfig
from ..errors import BackendError, EvsysError, TrainingError, show
from ..eval.run_eval import RunEvaluator
from ..eval.verifier import verify_with
from ..files import write_json
from ..inference.renderer import get_renderer
from ..log import get_logger
from ..protocols import Algorithm, DataStore, RunContext, RunResult
from ..registry import get_data_store, get_log_store
from ..training.blocking import run_blocking
from ..training.callback import Callback, Observers, RunControl, RunInfo
from ..training.checkpoints import CheckpointLog
from .arms import Arm
from .benchmark_plan import plan_benchmarks, selection
from .budget import BudgetMeter
from .observed_log_store import LogStoreCallback, ObservedLogStore, fill_log_dir
from .recipe import build_algorithm, build_backend, prepared
from .record_dir import PROGRESS_FILE, begin_run, write_result
from .rows import RowLoader, content_hash
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
        attempt = begin_run(options.run_dir, arm.run.model_dump(mode="json"))
        for make in options.callbacks:
            observers.add(make())
        if options.meter is not None:
            observers.add(options.meter)
        result = _train_and_score(arm, config, options, observers, attempt)
    except SystemExit as error:
        wish = TrainingError(f"the code of the run called sys.exit({error.code!r}). Raise an error instead.")
        result = failed_result(arm.name, wish)
    except Exception as error:
        result = failed_result(arm.name, error)
    if os.getpid() != owner:
        os._exit(1)  # a fork that the run's code has made and let go on; the record is its parent's
    observers.on_run_end(result)
    observers.close()
    if options.meter is not None:
        result.extras["spend"] = options.meter.spent().to_dict()
    # Written last: a run with a result is over, and everything else about it is on disk.
    return _recorded(options.run_dir, arm.run, result)


def _train_and_score(
    arm: Arm, config: ExperimentConfig, options: ArmOptions, observers: Observers, attempt: int
) -> RunResult:
    run, run_dir = arm.run, options.run_dir
    data_store: DataStore = get_data_store(config.data_store.kind)(**config.data_store.params)
    log_store = get_log_store(config.log_store.kind)(**fill_log_dir(config.log_store, run_dir))
    observers.add(LogStoreCallback(log_store))
    rows_of = RowLoader(data_store, run_dir)
    rows = rows_of(run.data) if run.data else []
    algorithm = build_algorithm(run)
    backend = build_backend(run, algorithm)
    with ExitStack() as ending:
        handles = _metered(ending.enter_context(prepared(backend, run, algorithm, run_dir)), options.meter)
        ctx = RunContext(arm.name, run_dir, config, data_store, ObservedLogStore(log_store, observers), backend)
        ctx.extras |= {"train_rows": rows, "n_train_rows": len(rows), "load_rows": rows_of, "backend_handles": handles}
        ctx.extras |= {"model_name": run.model.name, "tags": run.tags, "seed": run.seed, "attempt": attempt}
        ctx.extras |= {"observers": observers, "control": options.control, "resume": options.resume}
        ctx.extras["verify"] = verify_with()
        evaluator = _attach_evaluator(ctx, run)
        benchmarks = _attach_benchmarks(ctx, config, run, algorithm, options.meter)
        if benchmarks is not None:
            ending.callback(benchmarks.close)
        info = _run_info(ctx, config, run, algorithm, benchmarks)
        write_json(run_dir / PROGRESS_FILE, {"total_steps": info.total_steps})
        observers.on_run_start(info, options.control)
        ctx.log_store.log_hyperparams(_hyperparams(config, run))
        if rows:
            observers.on_data(rows)
        if benchmarks is not None and not info.steps_done:
            benchmarks.score_baselines()
        result = _trained(algorithm, ctx)
        if result.status == "completed":
            _score_if_missing(evaluator, run, result)
        if benchmarks is not None:
            benchmarks.finish(result)
        return result


def _metered(handles: dict[str, Any], meter: BudgetMeter | None) -> dict[str, Any]:
    """The handles, with a client through which nothing is spent uncounted."""
    client = handles.get("training_client")
    return handles if meter is None or client is None else {**handles, "training_client": meter.watch(client)}


def _trained(algorithm: Algorithm, ctx: RunContext) -> RunResult:
    result: Any = algorithm.train(ctx)
    if not isinstance(result, RunResult):
        name = getattr(algorithm, "name", type(algorithm).__name__)
        raise TrainingError(f"train() of the algorithm '{name}' returned {show(result)}. Return a RunResult.")
    return result


def _attach_evaluator(ctx: RunContext, run: RunConfig) -> RunEvaluator | None:
    """Give the recipe its renderer and its scorer, where the backend trains through a client."""
    client = ctx.extras["backend_handles"].get("training_client")
    if client is None:
        return None
    renderer = get_renderer(client.tokenizer, run.model.renderer_name)
    evaluator = RunEvaluator(
        run.eval, client, renderer, ctx.extras["observers"], ctx.extras["load_rows"], ctx.extras["train_rows"]
    )
    ctx.extras["renderer"] = renderer
    ctx.extras["selection_metric"] = evaluator.selection_metric
    if evaluator.wanted:
        ctx.extras["evaluate"] = evaluator
    if evaluator.scores_stages:
        ctx.extras["score_stage"] = evaluator.score_stage
    return evaluator


def _attach_benchmarks(
    ctx: RunContext, config: ExperimentConfig, run: RunConfig, algorithm: Algorithm, meter: BudgetMeter | None
) -> RunBenchmarks | None:
    """Load the benchmarks of the experiment and have the loop score those that are due during training."""
    if not config.metadata.benchmark:
        return None
    client = ctx.extras["backend_handles"].get("training_client")
    if client is None:
        raise BackendError(
            f"the backend '{run.backend.kind}' gives no training_client, so that metadata.benchmark cannot be scored. "
            "Return one from prepare(), or remove the benchmarks."
        )
    planned = plan_benchmarks(config.metadata, algorithm, seed=run.seed)
    identity = f"{run.backend.kind} {run.model.name} {content_hash([run.model.model_dump(mode='json')])[:8]} {run.seed}"
    benchmarks = RunBenchmarks(
        planned,
        client,
        ctx.extras["renderer"],
        ctx.extras["observers"],
        ctx.output_dir,
        ctx.extras["attempt"],
        identity,
        meter,
    )
    ctx.extras["scoring"] = benchmarks.background_scoring()
    if (chosen := selection(planned, config.metadata)) is not None:
        ctx.extras["selection_metric"], ctx.extras["selection_mode"] = chosen
    return benchmarks


def _run_info(
    ctx: RunContext,
    config: ExperimentConfig,
    run: RunConfig,
    algorithm: Algorithm,
    benchmarks: RunBenchmarks | None,
) -> RunInfo:
    last = CheckpointLog.in_dir(ctx.output_dir).last() if ctx.extras["resume"] else None
    planned = getattr(algorithm, "planned_steps", None)
    hypothesis = config.metadata.hypothesis
    return RunInfo(
        experiment=config.name,
        run_id=ctx.run_id,
        run_dir=ctx.output_dir,
        config=run.model_dump(mode="json"),
        total_steps=planned(ctx) if planned else None,
        steps_done=last.next_step if last else 0,
        hypothesis=hypothesis if hypothesis is None or isinstance(hypothesis, str) else hypothesis.claim,
        repeats=benchmarks.repeats(last) if benchmarks else (),
    )


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


def _score_if_missing(evaluator: RunEvaluator | None, run: RunConfig, result: RunResult) -> None:
    """Score what the recipe did not score itself; an arm without scores is marked, so that it cannot win."""
    if evaluator is None:
        if run.eval.enabled and run.eval.metrics:
            result.extras["unscored"] = f"the backend '{run.backend.kind}' gives no training_client to sample from"
        return
    missing = evaluator.wanted and not all(key in result.metrics for key in evaluator.keys)
    if missing and evaluator.failure is None:
        result.metrics |= run_blocking(lambda: evaluator(int(result.metrics.get("steps", 0))))
    if evaluator.failure is not None:
        result.extras["unscored"] = evaluator.failure


def failed_result(run_id: str, error: Exception) -> RunResult:
    """The result of a run that raised: one sentence for expected errors, the traceback for bugs."""
    get_logger(__name__).error("run '%s' failed: %s", run_id, error)
    expected = isinstance(error, EvsysError | OSError)
    extras: dict[str, Any] = {} if expected else {"traceback": traceback.format_exc()}
    if _may_pass(error):
        extras["retryable"] = True
    return RunResult(run_id, "failed", error=f"{type(error).__name__}: {error}", extras=extras)


def _may_pass(error: Exception) -> bool:
    """Whether the same arm may succeed when it is tried again: not if its config, its data or its loss is wrong."""
    return isinstance(error, BackendError) or not isinstance(error, EvsysError)


def _recorded(run_dir: Path, run: RunConfig, result: RunResult) -> RunResult:
    """The result, once it is on disk; a run that cannot be recorded has failed, and the other arms go on."""
    try:
        write_result(run_dir, result, hparams=run.model_dump(mode="json"))
    except Exception as error:
        return failed_result(result.run_id, error)
    return result
