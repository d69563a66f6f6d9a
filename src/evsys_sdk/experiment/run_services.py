"""The services that a run offers its recipe: stores, model and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ExperimentConfig, RunConfig
from ..errors import BackendError
from ..eval.run_eval import RunEvaluator, names_another_model
from ..eval.verifier import verify_rollout
from ..inference.renderer import get_renderer
from ..protocols import Algorithm, Backend, DataStore, LogStore, Row, RunResult
from ..record.layout import RunFiles
from ..registry import get_data_store, get_log_store
from ..training.blocking import run_blocking
from ..training.callback import Observers
from ..training.services import RunServices, Selection
from .arms.observed_log_store import LogStoreCallback, ObservedLogStore, fill_log_dir
from .arms.rows import RowLoader, content_hash
from .benchmark_plan import plan_benchmarks, selection
from .run_benchmarks import RunBenchmarks

if TYPE_CHECKING:
    from .runner import ArmOptions


def open_stores(config: ExperimentConfig, run_dir: Path, observers: Observers) -> tuple[DataStore, LogStore]:
    """The data store and the log store; metrics go to the log store and to the observers."""
    data_store: DataStore = get_data_store(config.data_store.kind)(**config.data_store.arguments)
    spec, logs = config.log_store, RunFiles(run_dir).logs.folder
    folder = logs if spec.kind in ("jsonl", "multiplex") else logs / spec.kind
    log_store: LogStore = get_log_store(spec.kind)(**fill_log_dir(spec, folder))
    observers.add(LogStoreCallback(log_store))
    return data_store, ObservedLogStore(log_store, observers)


def offer_services(
    run: RunConfig,
    handles: dict[str, Any],
    observers: Observers,
    options: ArmOptions,
    load_rows: RowLoader,
    attempt: int,
) -> RunServices:
    """The services of a run, without scoring."""
    client, meter = handles.get("training_client"), options.meter
    services = RunServices(
        observers=observers,
        control=options.control,
        verify=verify_rollout,
        load_rows=load_rows,
        client=client,
        renderer=None if client is None else get_renderer(client.tokenizer, run.model.renderer_name),
        seed=run.seed,
        attempt=attempt,
        resume=options.resume,
    )
    return services if meter is None else replace(services, seconds_left=meter.seconds_left, watch=meter.watch)


def add_evaluator(
    run: RunConfig, rows: Sequence[Row], services: RunServices, run_dir: Path
) -> tuple[RunEvaluator | None, RunServices]:
    """Add the scoring of `run.eval`, with the trained model or the model that `inference` names."""
    if services.client is None and not names_another_model(run.eval.inference):
        if run.eval.enabled and run.eval.metrics:
            raise BackendError(
                f"the backend '{run.backend.kind}' gives no training_client, so that run.eval cannot be scored. Return "
                "one from prepare(), name the model to ask under eval.inference, or set eval.enabled: false."
            )
        return None, services
    evaluator = RunEvaluator(
        run.eval,
        services.client,
        services.renderer,
        services.observers,
        services.load_rows,
        rows,
        run_dir,
        services.attempt,
    )
    metric = evaluator.selection_metric
    return evaluator, replace(
        services,
        evaluate=evaluator if evaluator.is_enabled else None,
        score_stage=evaluator.score_stage if evaluator.scores_stages else None,
        selection=None if metric is None else Selection(metric),
    )


def add_benchmarks(
    config: ExperimentConfig,
    run: RunConfig,
    algorithm: Algorithm,
    backend: Backend,
    services: RunServices,
    run_dir: Path,
) -> tuple[RunBenchmarks | None, RunServices]:
    """Load the benchmarks and add the scoring that is due during training."""
    if not config.metadata.benchmark:
        return None, services
    if services.client is None or services.renderer is None:
        raise BackendError(
            f"the backend '{run.backend.kind}' gives no training_client, so that metadata.benchmark cannot be scored. "
            "Return one from prepare(), or remove the benchmarks."
        )
    planned = plan_benchmarks(config.metadata, algorithm, seed=run.seed)
    benchmarks = RunBenchmarks(
        planned,
        services.client,
        services.renderer,
        services.observers,
        run_dir,
        services.attempt,
        _identify_base(run, backend),
    )
    chosen = selection(planned, config.metadata)
    return benchmarks, replace(
        services,
        scoring=benchmarks.background_scoring(),
        selection=services.selection if chosen is None else Selection(*chosen),
    )


def _identify_base(run: RunConfig, backend: Backend) -> str:
    """A name for the untrained model; with the seed where the backend draws its weights from it."""
    model = content_hash([run.model.model_dump(mode="json")])[:8]
    name = f"{getattr(backend, 'name', run.backend.kind)} {run.model.name} {model}"
    return f"{name} {run.seed}" if getattr(backend, "seeded_base", False) else name


def score_if_missing(evaluator: RunEvaluator | None, result: RunResult) -> None:
    """Score what the recipe has not scored; an arm without scores is marked, so that it cannot win."""
    if result.status != "completed" or evaluator is None:
        return
    missing = evaluator.is_enabled and not all(key in result.metrics for key in evaluator.keys)
    if missing and evaluator.failure is None:
        result.metrics |= run_blocking(lambda: evaluator(int(result.metrics.get("steps", 0))))
    if evaluator.failure is not None:
        result.notes.unscored = evaluator.failure
