"""`metadata.benchmark` as a plan: what is scored, how and when, with the checks that need no run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import BenchmarkEntry, Budget, DataConfig, ExperimentConfig, Metadata, TransformSpec
from ..config.metadata import BASE_MODEL
from ..config.prices import price_of
from ..config.search import success_of
from ..data import prepare_rows
from ..data.stores.local import LocalDataStore
from ..data.task_source import locate_rows
from ..data.types import HarborTask, InProcessVerifier
from ..data.workspace.local_folder import LocalFolder
from ..data.workspace.reference import Reference
from ..errors import EvalError, EvsysError, Problem, problems_of, suggest
from ..eval.benchmark import Benchmark, ScoreSettings, check_engine
from ..eval.metric import build_metric
from ..eval.run_eval import names_another_model
from ..eval.scored_model import Sampling
from ..eval.verifier import build_verifier
from ..eval.verifiers.python_tests import check_tests
from ..paths import project_root
from ..protocols import Algorithm, traits_of
from ..registry import get_inference, list_metrics
from ..rollouts.engine import EngineLimits
from ..rollouts.harbor.task_folder import refuse_containers
from ..rollouts.harness import Harness, build_harness, check_environment
from ..training.callback import EvalRecord

_MAX_TOKENS = 256
_NO_PRICE = (
    "it needs the price of the model in training, and there is none",
    "Add the model to budget.prices, or report tokens_per_task or tokens_per_correct.",
)


@dataclass(frozen=True, slots=True)
class PlannedBenchmark:
    """One entry of `metadata.benchmark` with its tasks."""

    entry: BenchmarkEntry
    benchmark: Benchmark
    settings: ScoreSettings

    @property
    def split(self) -> str:
        """The first part of its metric names: val, test, or `eval` for an entry without a role."""
        return self.entry.role or "eval"

    @property
    def label(self) -> str:
        return self.entry.label or ""

    def is_due(self, step: int) -> bool:
        """Whether it is scored after this training step."""
        return self.entry.run_every is not None and step % self.entry.run_every == 0

    def blank(self, step: int) -> EvalRecord:
        """The record of a scoring that has not started."""
        return EvalRecord(self.label, self.split, step, {"tasks": 0.0})

    def metric_name(self, metric: str) -> str:
        """The full name that a metric is logged under."""
        [name] = EvalRecord(self.label, self.split, 0, {metric: 0.0}).named_metrics
        return name

    def describe(self) -> dict[str, Any]:
        """The tasks and how they are scored, for the record of the run."""
        settings = self.settings
        return {
            "name": self.label,
            "split": self.split,
            "run_every": self.entry.run_every,
            "id": self.benchmark.id,
            "sha256": self.benchmark.sha256,
            "tasks": len(self.benchmark.tasks[: settings.n_tasks]),
            "samples": settings.samples,
            "metrics": list(settings.metrics),
            "transforms": [transform.model_dump(mode="json") for transform in _pipeline(self.entry)],
            **settings.identity,
        }


def plan_benchmarks(metadata: Metadata, algorithm: Algorithm, *, seed: int) -> list[PlannedBenchmark]:
    """Every entry with its tasks; an entry that names no harness or limits takes those of training."""
    planned = [
        PlannedBenchmark(entry, load_entry(entry), _settings(entry, metadata, algorithm, seed))
        for entry in metadata.benchmark
    ]
    for plan in planned:
        refuse_containers(plan.benchmark.tasks, plan.settings.harness.environment)
    return planned


def load_entry(entry: BenchmarkEntry) -> Benchmark:
    """The tasks of an entry."""
    path = None if entry.path is None else locate_rows(entry.path)
    if path is not None and entry.id is None and entry.on_bad_row == "skip":  # not cached: other rows than the file's
        source = DataConfig(path=str(path), columns=entry.columns, transforms=entry.transforms, on_bad_row="skip")
        return Benchmark.of(prepare_rows(source, store=LocalDataStore()), name=entry.name or path.stem)
    return Benchmark.load(id=entry.id, path=path, name=entry.name, transforms=_pipeline(entry))


def _pipeline(entry: BenchmarkEntry) -> list[TransformSpec]:
    """The transforms of an entry, with the renaming of its columns first."""
    renamed = TransformSpec(kind="rename_fields", params={"fields": entry.columns})
    return [renamed, *entry.transforms] if entry.columns else entry.transforms


def task_files(config: ExperimentConfig) -> Iterator[Path]:
    """The local files and folders with the tasks and rows that an experiment is scored on."""
    held_out = [stage.eval_data for run in config.all_runs() for stage in (run.eval, *run.stages())]
    paths = [data.path for data in held_out if data is not None] + [entry.path for entry in config.metadata.benchmark]
    yield from (locate_rows(path) for path in dict.fromkeys(paths) if path is not None)
    unplaced = [entry.name for entry in config.metadata.benchmark if entry.path is None and entry.id is None]
    names = {Reference.parse(name).name for name in unplaced if name}
    if names:
        yield from (file.path for file in LocalFolder(project_root()).list("benchmark") if file.name in names)


def selection(planned: list[PlannedBenchmark], metadata: Metadata) -> tuple[str, Literal["min", "max"]] | None:
    """The val metric that selects checkpoints, with its direction; None if no val entry is scored in training."""
    success = success_of(metadata)
    for plan in planned:
        if plan.split == "val" and plan.entry.run_every is not None:
            reported = list_reported_metrics(plan.entry, metadata)
            name = success.name if success and success.name in reported else reported[0]
            return plan.metric_name(name), success.mode if success and success.name == name else "max"
    return None


def benchmark_problems(metadata: Metadata, *, priced: bool = True) -> list[Problem]:
    """The problems of the entries; `priced` says whether every trained model has a price."""
    entries = enumerate(metadata.benchmark)
    return [problem for index, entry in entries for problem in _problems(index, entry, metadata, priced)]


def is_priced(config: ExperimentConfig) -> bool:
    """Whether every run has a price for its answers."""
    return all(price_of(run, config.budget or Budget()) is not None for run in config.all_runs())


def _problems(index: int, entry: BenchmarkEntry, metadata: Metadata, priced: bool) -> Iterator[Problem]:
    path = f"metadata.benchmark[{index}]"
    checks: list[tuple[str, Callable[[], Any]]] = [(f"{path}.engine", lambda: check_engine(entry.engine or "inline"))]
    checks += [(f"{path}.metrics[{at}]", lambda name=name: build_metric(name)) for at, name in enumerate(entry.metrics)]
    checks += [
        (f"{path}.models[{at}]", lambda name=name: get_inference(name.partition(":")[0]))
        for at, name in enumerate(entry.models)
        if name != BASE_MODEL
    ]
    if entry.agent_import_path is not None:
        checks.append((f"{path}.agent_import_path", lambda: _check_agent(entry)))
    if entry.environment is not None:
        checks.append((f"{path}.environment", lambda: check_environment(entry.environment)))
    # Last, because importing an agent may register the verifier that the tasks name.
    loaded: list[HarborTask] = []
    checks.append((path, lambda: loaded.extend(_check_tasks(load_entry(entry), entry))))
    well_named = True
    for place, check in checks:
        try:
            check()
        except EvsysError as error:
            well_named = well_named and not place.startswith(f"{path}.metrics")
            yield from problems_of(error, place, "Correct the entry, or its tasks.")
    if well_named:
        for at, name in enumerate(entry.metrics):
            if not priced and build_metric(name).needs_price:
                yield Problem(_NO_PRICE[0], path=f"{path}.metrics[{at}]", hint=_NO_PRICE[1])
        settings = ScoreSettings(samples=entry.samples, metrics=list_reported_metrics(entry, metadata))
        for at, problem, hint in settings.metric_problems(loaded):
            yield Problem(problem, path=f"{path}.metrics[{at}]" if entry.metrics else f"{path}.metrics", hint=hint)


def run_eval_problems(config: ExperimentConfig) -> list[Problem]:
    """The problems of the metrics of `run.eval`, which samples one answer per row."""
    problems: dict[str, Problem] = {}
    for index, run in enumerate(config.all_runs()):
        if not run.eval.enabled:
            continue
        path = "run" if config.run is not None else f"runs[{index}]"
        for at, spec in enumerate(run.eval.metrics):
            place = f"{path}.eval.metrics[{at}]"
            try:
                metric = build_metric(spec)
            except EvsysError as error:
                for problem in problems_of(error, place):
                    problems.setdefault(problem.message, problem)
                continue
            if metric.k > 1:
                message = f"{spec.kind} needs {metric.k} answers per row, and run.eval samples one"
                hint = f"Set k to 1, or score the rows as a metadata.benchmark with samples: {metric.k}."
                problems.setdefault(message, Problem(message, path=place, hint=hint))
            trained = not names_another_model(run.eval.inference)
            if metric.needs_price and trained and price_of(run, config.budget or Budget()) is None:
                problems.setdefault(_NO_PRICE[0], Problem(_NO_PRICE[0], path=place, hint=_NO_PRICE[1]))
    return list(problems.values())


def _check_agent(entry: BenchmarkEntry) -> None:
    harness = build_harness(agent_import_path=entry.agent_import_path)
    if entry.engine == "inline":
        harness.refuse_inline()


def _check_tasks(benchmark: Benchmark, entry: BenchmarkEntry) -> Sequence[HarborTask]:
    """The tasks that are scored; refuses a verifier that cannot be built, and metadata keys that no task has."""
    tasks = benchmark.tasks[: entry.n_tasks]
    built: set[str] = set()
    for task in tasks:
        verifier = task.verifier
        named = isinstance(verifier, InProcessVerifier)
        key = repr((verifier.fn_name, verifier.params)) if named else repr(verifier)
        if key not in built:
            built.add(key)
            try:
                build_verifier(verifier)
            except EvsysError as error:
                raise EvalError(f"task '{task.task_id}': {error}") from error
        if named and verifier.fn_name == "python_tests":
            try:
                check_tests(verifier.expected)
            except EvalError as error:
                raise EvalError(f"task '{task.task_id}': {error}") from error
    if entry.environment is not None:
        refuse_containers(tasks, build_harness(environment=entry.environment).environment)
    keys = sorted({key for task in tasks for key in task.metadata})
    for name, where in [*((key, "breakdown_keys") for key in entry.breakdown_keys), (entry.cluster_by, "cluster_by")]:
        if name is not None and name not in keys:
            available = f"they have {', '.join(keys)}" if keys else "they have none"
            remedy = suggest(name, keys) or "Name one that they have, or remove it."
            raise EvalError(f"no task has the metadata key '{name}' of {where}; {available}. {remedy}")
    return tasks


def _settings(entry: BenchmarkEntry, metadata: Metadata, algorithm: Algorithm, seed: int) -> ScoreSettings:
    trained = traits_of(algorithm).rollouts
    # At temperature 0 all samples of a task would be the same.
    temperature = entry.temperature if entry.temperature is not None else float(entry.samples > 1)
    max_tokens = entry.max_tokens or (trained.max_tokens if trained else None) or _MAX_TOKENS
    harness = _harness(entry, algorithm)
    return ScoreSettings(
        samples=entry.samples,
        sampling=Sampling(max_tokens, temperature, seed),
        harness=harness,
        engine=entry.engine or (trained.engine if trained else None) or harness.engine,
        limits=EngineLimits(concurrency=entry.concurrency, timeout_s=entry.timeout_s),
        metrics=list_reported_metrics(entry, metadata),
        breakdown_keys=entry.breakdown_keys,
        cluster_by=entry.cluster_by,
        n_tasks=entry.n_tasks,
    )


def list_reported_metrics(entry: BenchmarkEntry, metadata: Metadata) -> list[str]:
    """The names of the metrics that an entry reports."""
    success = success_of(metadata)
    return entry.metrics or [success.name if success and success.name in list_metrics() else "pass@1"]


def _harness(entry: BenchmarkEntry, algorithm: Algorithm) -> Harness:
    """The harness that the entry names, with the missing parts from the one of training."""
    trained = traits_of(algorithm).rollouts
    agent, import_path, environment = entry.agent, entry.agent_import_path, entry.environment
    if trained is not None:
        if agent is import_path is environment is None:
            return trained.harness()
        if agent is None and import_path is None:
            agent, import_path = trained.agent, trained.agent_import_path
        environment = environment or trained.environment
    return build_harness(agent, environment, agent_import_path=import_path)
