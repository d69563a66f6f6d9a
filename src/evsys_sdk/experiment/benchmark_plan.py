"""`metadata.benchmark` -> what is scored, how and when; and everything that can be refused before a run starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..config import BenchmarkEntry, Metadata, SuccessMetric
from ..config.metadata import BASE_MODEL
from ..data.types import InProcessVerifier
from ..errors import EvalError, EvsysError, Problem
from ..eval.benchmark import Benchmark, ScoreSettings
from ..eval.engines import check_engine
from ..eval.metric import build_metric
from ..eval.scored_model import Sampling
from ..eval.verifier import build_verifier
from ..eval.verifiers.python_tests import check_tests
from ..protocols import Algorithm
from ..registry import get_inference, list_metrics
from ..rollouts.engine import EngineLimits
from ..rollouts.harbor.task_folder import refuse_containers
from ..rollouts.harness import Harness, build_harness
from ..training.callback import EvalRecord

_OF_K = re.compile(r"pass[@^](\d+)")
_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class PlannedBenchmark:
    """One entry of the config with its tasks."""

    entry: BenchmarkEntry
    benchmark: Benchmark
    settings: ScoreSettings

    @property
    def split(self) -> str:
        """What its metrics begin with; an entry that is neither val nor test is called `eval`."""
        return self.entry.role or "eval"

    @property
    def label(self) -> str:
        return self.entry.label or ""

    def is_due(self, step: int) -> bool:
        """Whether it is scored after this step of training."""
        return self.entry.run_every is not None and step % self.entry.run_every == 0

    def blank(self, step: int) -> EvalRecord:
        """The record of a scoring, as far as it is known beforehand."""
        return EvalRecord(self.label, self.split, step, {"tasks": 0.0})

    def metric_name(self, metric: str) -> str:
        """The full name that a metric is logged under."""
        [name] = EvalRecord(self.label, self.split, 0, {metric: 0.0}).named_metrics
        return name

    def describe(self) -> dict[str, Any]:
        """For the record of the run: exactly which tasks these were, and how they were scored."""
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
            **settings.identity,
        }


def plan_benchmarks(metadata: Metadata, algorithm: Algorithm, *, seed: int) -> list[PlannedBenchmark]:
    """Every entry with its tasks; the model is asked as it was in training wherever the entry says nothing else."""
    planned = [
        PlannedBenchmark(entry, load_entry(entry), _settings(entry, metadata, algorithm, seed))
        for entry in metadata.benchmark
    ]
    for one in planned:
        refuse_containers(one.benchmark.tasks, one.settings.harness.environment)
    return planned


def load_entry(entry: BenchmarkEntry) -> Benchmark:
    """The tasks of an entry."""
    return Benchmark.load(id=entry.id, path=entry.path, name=entry.name)


def selection(planned: list[PlannedBenchmark], metadata: Metadata) -> tuple[str, str] | None:
    """The metric that chooses among checkpoints, and whether more or less is better: never one of a test entry."""
    success = _success(metadata)
    for one in planned:
        if one.split == "val" and one.entry.run_every is not None:
            name = success.name if success and success.name in one.settings.metrics else one.settings.metrics[0]
            return one.metric_name(name), success.mode if success and success.name == name else "max"
    return None


def benchmark_problems(metadata: Metadata) -> list[Problem]:
    """What is wrong with the entries, before anything is spent."""
    return [problem for index, entry in enumerate(metadata.benchmark) for problem in _problems(index, entry, metadata)]


def _problems(index: int, entry: BenchmarkEntry, metadata: Metadata) -> Iterator[Problem]:
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
    # Last, because the module of an agent may bring the verifier that the tasks name.
    checks.append((path, lambda: _check_tasks(load_entry(entry), entry)))
    for place, check in checks:
        try:
            check()
        except EvsysError as error:
            yield Problem(str(error).rstrip("."), path=place)
    for at, name in enumerate(entry.metrics):
        needed = _OF_K.fullmatch(name)
        if needed and int(needed[1]) > entry.samples:
            hint = f"Set samples: {needed[1]}."
            message = f"{name} needs at least {needed[1]} attempts at each task, and samples is {entry.samples}"
            yield Problem(message, path=f"{path}.metrics[{at}]", hint=hint)


def _check_agent(entry: BenchmarkEntry) -> None:
    harness = build_harness(agent_import_path=entry.agent_import_path)
    if entry.engine == "inline":
        harness.refuse_inline()


def _check_tasks(benchmark: Benchmark, entry: BenchmarkEntry) -> None:
    """Refuse tasks whose verifier cannot be built, and a breakdown by what none of them has."""
    tasks = benchmark.tasks[: entry.n_tasks]
    built: set[str] = set()
    for task in tasks:
        what = task.verifier
        key = repr((what.fn_name, what.params)) if isinstance(what, InProcessVerifier) else repr(what)
        if key not in built:
            built.add(key)
            try:
                build_verifier(what)
            except EvsysError as error:
                raise EvalError(f"task '{task.task_id}': {error}") from error
        if isinstance(what, InProcessVerifier) and what.fn_name == "python_tests":
            try:
                check_tests(what.expected)
            except EvalError as error:
                raise EvalError(f"task '{task.task_id}': {error}") from error
    if entry.environment is not None:
        refuse_containers(tasks, build_harness(environment=entry.environment).environment)
    for name in entry.breakdown_keys:
        keys = sorted({key for task in tasks for key in task.metadata})
        if tasks and name not in keys:
            known = f"they have {', '.join(keys)}" if keys else "they have none"
            raise EvalError(f"no task has the metadata key '{name}' of breakdown_keys; {known}.")


def _settings(entry: BenchmarkEntry, metadata: Metadata, algorithm: Algorithm, seed: int) -> ScoreSettings:
    cfg = getattr(_on_policy_recipe(algorithm), "cfg", None)
    success = _success(metadata)
    default = success.name if success and success.name in list_metrics() else "pass@1"
    temperature = entry.temperature if entry.temperature is not None else float(entry.samples > 1)
    max_tokens = entry.max_tokens or getattr(getattr(cfg, "sampling", None), "max_tokens", None) or _MAX_TOKENS
    return ScoreSettings(
        samples=entry.samples,
        sampling=Sampling(max_tokens, temperature, seed),
        harness=_harness(entry, algorithm),
        engine=entry.engine or getattr(cfg, "engine", None) or "inline",
        limits=EngineLimits(concurrency=entry.concurrency, timeout_s=entry.timeout_s),
        metrics=entry.metrics or [default],
        breakdown_keys=entry.breakdown_keys,
        n_tasks=entry.n_tasks,
    )


def _harness(entry: BenchmarkEntry, algorithm: Algorithm) -> Harness:
    """The harness that the entry names, completed by the one that the model was trained in."""
    trained = _on_policy_recipe(algorithm)
    if trained is not None and entry.agent is entry.agent_import_path is entry.environment is None:
        return trained.harness()
    cfg = getattr(trained, "cfg", None)
    agent, import_path = entry.agent, entry.agent_import_path
    if agent is None and import_path is None:
        agent, import_path = getattr(cfg, "agent", None), getattr(cfg, "agent_import_path", None)
    environment = entry.environment or getattr(cfg, "environment", None)
    return build_harness(agent, environment, agent_import_path=import_path)


def _on_policy_recipe(algorithm: Algorithm) -> Any:
    """The recipe that has a harness: the algorithm itself, or the last such stage of it."""
    stages: list[Any] = [*getattr(algorithm, "_algorithms", ()), algorithm]
    return next((stage for stage in reversed(stages) if callable(getattr(stage, "harness", None))), None)


def _success(metadata: Metadata) -> SuccessMetric | None:
    given = metadata.success_metric
    return SuccessMetric(name=given) if isinstance(given, str) else given
