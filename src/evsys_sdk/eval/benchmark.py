"""Benchmarks: a fixed set of tasks, and the scoring of any model on it.

    benchmark = Benchmark.load(path="data/benchmark/routing")
    result = benchmark.score(get_inference("openai")(model="gpt-4.1"), metrics=["pass@1"], journal=folder / "p.jsonl")
    result.metrics["pass@1"].value, result.metrics["pass@1"].stderr, result.unscored

With a `journal`, a killed scoring resumes. A failure of infrastructure (sandbox, server, verifier) is never a reward of
0: the sample is missing, and a task without any other sample is reported as unscored.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..config.specs import MetricSpec, TransformSpec
from ..data import HarborTask, TargetFormat, Workspace, apply_transforms, build_transforms, parse_rows, to_dict
from ..data.task_identity import duplicate_key, task_id, task_list_id
from ..errors import ConfigError, DataError, Problem, closest, show
from ..rollouts.engine import EngineLimits, RolloutRequest
from ..rollouts.harbor.task_folder import holds_task_folders, load_harbor_tasks, refuse_containers
from ..rollouts.harness import Harness, build_harness
from ..rollouts.rollout import Rollout
from ..training.blocking import run_blocking
from .foreign_run import find_suite
from .metric import BuiltMetric, build_metric
from .pace import Pace
from .predictions import Prediction, PredictionJournal
from .scored_model import Sampling, ScoredModel, as_scored_model
from .scores import EvalResult, compute_scores
from .verifier import verify_rollout

if TYPE_CHECKING:
    from ..rollouts.engine import RolloutEngine, Verify

type Progress = Callable[[int, int], None]
"""Called after each attempt with the number of finished attempts and their total."""


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """How a benchmark is scored, independent of tasks and model."""

    samples: int = 1
    """Attempts at each task."""
    sampling: Sampling = field(default_factory=Sampling)
    harness: Harness = field(default_factory=build_harness)
    engine: str = "inline"
    limits: EngineLimits = field(default_factory=EngineLimits)
    metrics: Sequence[str | MetricSpec] = ("pass@1",)
    breakdown_keys: Sequence[str] = ()
    """Metadata keys of the tasks to report separate scores for."""
    cluster_by: str | None = None
    """Metadata key of the group that a task was drawn with; by default `cluster`."""
    n_tasks: int | None = None
    """Score only the first this many tasks."""
    verify: Verify = verify_rollout
    rejudge: Callable[[HarborTask, Prediction], Prediction] | None = None
    """Judges stored answers again, so that a corrected target needs no new samples; only for verdicts that follow from
    answers alone."""

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a prediction depends on; more samples or tasks keep existing predictions valid."""
        return {**asdict(self.sampling), "harness": self.harness.description, "engine": self.engine}

    def build_metrics(self) -> dict[str, BuiltMetric]:
        """The metrics by their label in the record: the kind, numbered if it repeats."""
        built = [build_metric(metric) for metric in self.metrics]
        names = [metric.name for metric in built]
        labels = [f"{name}-{n}" if (n := names[: at + 1].count(name)) > 1 else name for at, name in enumerate(names)]
        return dict(zip(labels, built, strict=True))

    def metric_problems(self, tasks: Sequence[HarborTask]) -> list[tuple[int, str, str]]:
        """Metrics that cannot be computed for these tasks, whatever the answers: place, reason and remedy."""
        problems: list[tuple[int, str, str]] = []
        for at, metric in enumerate(map(build_metric, self.metrics)):
            if metric.k > self.samples:
                reason = f"{metric.name} needs at least {metric.k} attempts at each task, and samples is {self.samples}"
                problems.append((at, reason, f"Set samples: {metric.k}."))
            without = [task.task_id for task in tasks if getattr(task.verifier, "expected", None) is None]
            if "targets" in metric.inputs and without:
                missing = f"{metric.name} compares answers with what is expected, and task '{without[0]}' expects none"
                problems.append((at, missing, "Report a metric of rewards, such as pass@1."))
        return problems


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A fixed set of tasks."""

    name: str
    tasks: Sequence[HarborTask]
    sha256: str
    id: str | None = None

    @classmethod
    def load(
        cls,
        *,
        path: Path | str | None = None,
        id: str | None = None,
        name: str | None = None,
        transforms: Sequence[TransformSpec] = (),
    ) -> Self:
        """Load the tasks at a path, or of an id or name in the workspace; with a path or id, `name` is only a label.

        A path may also be a Harbor task folder, or a folder of them. `transforms` turn other rows into tasks.
        """
        steps = build_transforms(transforms)
        if path is not None and id is None and holds_task_folders(Path(path)):
            rows: Iterable[Any] = map(to_dict, load_harbor_tasks(path))
            return cls.of(apply_transforms(rows, steps), name=name or Path(path).name)
        workspace = Workspace()
        if path is not None and id is None and transforms and not Path(path).is_dir():
            pulled = workspace.pull_dataset(path=path)  # rows of any form
        else:
            pulled = workspace.pull_benchmark(
                id=id, path=path if id is None else None, name=name if id is None and path is None else None
            )
        benchmark = cls.of(apply_transforms(pulled.rows(), steps), name=name or pulled.name)
        return replace(benchmark, id=pulled.id)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any] | HarborTask], *, name: str) -> Self:
        """Make a benchmark from rows or tasks."""
        raw = [to_dict(row) if isinstance(row, HarborTask) else dict(row) for row in rows]
        tasks = list(parse_rows(raw, TargetFormat.HARBOR_TASK))
        if not tasks:
            raise DataError(f"benchmark '{name}' has no tasks. Check its path and its rows.")
        repeated = [name for name, times in Counter(task.task_id for task in tasks).items() if times > 1]
        if repeated:
            raise DataError(f"benchmark '{name}' has task {show(repeated[0])} twice. Give each task its own id.")
        return cls(name, tasks, task_list_id(tasks))

    def score(
        self,
        model: Any,
        settings: ScoreSettings | None = None,
        *,
        journal: Path | None = None,
        engine: RolloutEngine | None = None,
        progress: Progress | None = None,
        pace: Pace | None = None,
    ) -> EvalResult:
        """Score an inference client, a policy or a `ScoredModel`; works inside and outside of an event loop."""
        work = self.score_async
        return run_blocking(lambda: work(model, settings, journal=journal, engine=engine, progress=progress, pace=pace))

    async def score_async(
        self,
        model: Any,
        settings: ScoreSettings | None = None,
        *,
        journal: Path | None = None,
        engine: RolloutEngine | None = None,
        progress: Progress | None = None,
        pace: Pace | None = None,
    ) -> EvalResult:
        """`score` for async code; a given `engine` stays open, `pace` limits the load next to training."""
        settings = settings or ScoreSettings()
        tasks = self.tasks[: settings.n_tasks]
        # Invalid settings are refused before an engine is opened or a model is sampled.
        metrics = settings.build_metrics()
        refuse_containers(tasks, settings.harness.environment)
        subject = as_scored_model(model)
        began = time.perf_counter()
        running = engine or open_engine(settings.engine, settings.limits)
        stored = PredictionJournal.open(journal, {"model": subject.ref, **settings.identity})
        try:
            predictions = await _attempt_all(tasks, subject, settings, running, stored, progress, pace)
            if settings.rejudge is not None:
                stored.rewrite(predictions)
        finally:
            stored.close()
            if engine is None:
                running.close()
        result = EvalResult(
            self.name,
            self.sha256,
            subject.ref,
            predictions,
            seconds=time.perf_counter() - began,
            samples=settings.samples,
            clusters=_find_clusters(tasks, settings.cluster_by),
        )
        return compute_scores(result, tasks, metrics, settings.breakdown_keys)


def _find_clusters(tasks: Sequence[HarborTask], key: str | None) -> dict[str, str]:
    """The cluster of each task; tasks with the same question and verifier are one cluster."""
    clusters = {task.task_id: task.metadata.get(key or "cluster") for task in tasks}
    alone = [task for task in tasks if clusters[task.task_id] is None]
    first: dict[str, str] = {}
    same = {task.task_id: first.setdefault(duplicate_key(task), task.task_id) for task in alone}
    repeated = {name for name, times in Counter(same.values()).items() if times > 1}
    clusters |= {name: f"the same as {other}" for name, other in same.items() if other in repeated}
    return {name: str(cluster) for name, cluster in clusters.items() if cluster is not None}


async def _attempt_all(
    tasks: Sequence[HarborTask],
    model: ScoredModel,
    settings: ScoreSettings,
    engine: RolloutEngine,
    journal: PredictionJournal,
    progress: Progress | None,
    pace: Pace | None,
) -> list[Prediction]:
    """Every sample of every task in task order; finished samples come from the journal."""
    pairs = [(task, sample) for task in tasks for sample in range(settings.samples)]
    ids = {task.task_id: task_id(task, judged=settings.rejudge is None) for task in tasks}
    finished: dict[tuple[str, int], Prediction] = {}
    for task, sample in pairs:
        if (stored := journal.find(task.task_id, ids[task.task_id], sample)) is not None:
            finished[task.task_id, sample] = settings.rejudge(task, stored) if settings.rejudge else stored

    async def attempt(task: HarborTask, sample: int) -> None:
        policy = model.policy(settings.sampling, task.task_id, sample)
        request = RolloutRequest(task, sample, policy, settings.harness, settings.verify)
        try:
            async with pace or nullcontext():  # outside the attempt, which has a time limit
                [rollout] = await engine.submit([request])
        except Exception as error:  # the other attempts continue
            rollout = Rollout(task.task_id, sample, "infra", None, error=f"{type(error).__name__}: {error}")
        if refusals := getattr(model, "refusals", None):  # for example a refused key, which fails every request
            raise refusals[0]
        prediction = Prediction.of(rollout, ids[task.task_id])
        journal.append(prediction)
        finished[task.task_id, sample] = prediction
        report()

    def report() -> None:
        if progress is not None:
            progress(len(finished), len(pairs))

    missing = [(task, sample) for task, sample in pairs if (task.task_id, sample) not in finished]
    report()
    suite = find_suite(tasks)
    if suite is not None and missing:
        unfinished = list({task.task_id: task for task, _ in missing}.values())
        limits, samples = settings.limits, settings.samples
        logs = journal.path.parent / "artifacts" if journal.path else None
        run = await suite.run_tasks(model, settings.sampling, unfinished, samples=samples, limits=limits, folder=logs)
        for prediction in run.predictions:
            key = prediction.task_id, prediction.sample
            if prediction.task_id in ids and key not in finished:
                finished[key] = replace(prediction, task=ids[prediction.task_id])
                journal.append(finished[key])
        lost = "it is not in the log of the run"
        none = {(task.task_id, at): Prediction(task.task_id, at, "infra", None, error=lost) for task, at in missing}
        finished = none | finished
        report()
    else:
        await asyncio.gather(*(attempt(task, sample) for task, sample in missing))
    return [finished[task.task_id, sample] for task, sample in pairs]


# The rollout engines that `engine` can name.

ENGINES = {"inline": "rollouts.engine:InlineEngine", "harbor": "rollouts.harbor.engine:HarborEngine"}
"""Name -> module and class below `evsys_sdk`; the class takes `EngineLimits`."""


def check_engine(name: str) -> None:
    """Refuse an engine that does not exist, before anything is spent."""
    if name not in ENGINES:
        guess = closest(name, ENGINES)
        names = ", ".join(ENGINES)
        hint = f"Did you mean '{guess}'?" if guess else f"This version has: {names}."
        raise ConfigError(Problem(f"there is no rollout engine '{name}'", path="engine", hint=hint))
    if name == "harbor":
        from ..rollouts.harbor.engine import require_harbor

        require_harbor()


def open_engine(name: str, limits: EngineLimits) -> RolloutEngine:
    """Start an engine; the caller closes it."""
    check_engine(name)
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(import_module(f"evsys_sdk.{module}"), attribute)(limits)
