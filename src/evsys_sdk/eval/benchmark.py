"""Benchmarks: a fixed set of tasks, and the scoring of any model on it.

    benchmark = Benchmark.load(path="data/benchmark/routing")
    result = benchmark.score(get_inference("openai")(model="gpt-4.1"), metrics=["pass@1"], journal=folder / "p.jsonl")
    result.metrics["pass@1"].value, result.metrics["pass@1"].stderr, result.unscored

With a `journal`, a scoring that was killed goes on where it was. What fails on our side (a sandbox, a server, a
verifier) is never a reward of 0: the sample is missing, and a task that has no other is reported as unscored.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..data import HarborTask, TargetFormat, Workspace, parse_rows, to_dict
from ..errors import DataError, show
from ..rollouts.engine import EngineLimits, RolloutRequest
from ..rollouts.harbor.task_folder import holds_task_folders, load_harbor_tasks, refuse_containers
from ..rollouts.harness import Harness, build_harness
from ..training.blocking import run_blocking
from .engines import open_engine
from .predictions import Prediction, PredictionJournal
from .scored_model import Sampling, ScoredModel, as_scored_model
from .scores import EvalResult, scored
from .verifier import verify_with

if TYPE_CHECKING:
    from ..rollouts.engine import RolloutEngine, Verify

type Progress = Callable[[int, int], None]
"""Told after each attempt how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """How a benchmark is scored, apart from on what and by which model."""

    samples: int = 1
    """Attempts at each task."""
    sampling: Sampling = field(default_factory=Sampling)
    harness: Harness = field(default_factory=build_harness)
    engine: str = "inline"
    limits: EngineLimits = field(default_factory=EngineLimits)
    metrics: Sequence[str] = ("pass@1",)
    breakdown_keys: Sequence[str] = ()
    """Metadata keys of the tasks to report separate scores for."""
    n_tasks: int | None = None
    """Score only the first this many tasks."""
    verify: Verify = field(default_factory=verify_with)

    @property
    def identity(self) -> dict[str, Any]:
        """What a prediction depends on; more samples or tasks only add to the ones that are there."""
        return {**asdict(self.sampling), "harness": self.harness.description, "engine": self.engine}


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
        workspace: Workspace | None = None,
    ) -> Self:
        """The tasks at a path, or of an id or name in the workspace; with a path or id, `name` is only a label.

        A path may also be a Harbor task folder, or a folder of them.
        """
        if path is not None and id is None and holds_task_folders(Path(path)):
            return cls.of(load_harbor_tasks(path), name=name or Path(path).name)
        pulled = (workspace or Workspace()).pull_benchmark(
            id=id, path=path if id is None else None, name=name if id is None and path is None else None
        )
        found = cls.of(pulled.rows(), name=name or pulled.name)
        return cls(found.name, found.tasks, found.sha256, pulled.id)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any] | HarborTask], *, name: str) -> Self:
        """A benchmark from rows or tasks at hand."""
        raw = [to_dict(row) if isinstance(row, HarborTask) else dict(row) for row in rows]
        tasks = list(parse_rows(raw, TargetFormat.HARBOR_TASK))
        if not tasks:
            raise DataError(f"benchmark '{name}' has no tasks. Check its path and its rows.")
        repeated = [task_id for task_id, times in Counter(task.task_id for task in tasks).items() if times > 1]
        if repeated:
            raise DataError(f"benchmark '{name}' has task {show(repeated[0])} twice. Give each task an id of its own.")
        digest = hashlib.sha256()
        for task in tasks:
            digest.update(json.dumps(to_dict(task), sort_keys=True, default=str).encode() + b"\n")
        return cls(name, tasks, digest.hexdigest())

    def score(
        self,
        model: Any,
        settings: ScoreSettings | None = None,
        *,
        journal: Path | None = None,
        engine: RolloutEngine | None = None,
        progress: Progress | None = None,
    ) -> EvalResult:
        """Score an inference client, a policy or a `ScoredModel`; works inside and outside of an event loop."""
        work = self.score_async
        return run_blocking(lambda: work(model, settings, journal=journal, engine=engine, progress=progress))

    async def score_async(
        self,
        model: Any,
        settings: ScoreSettings | None = None,
        *,
        journal: Path | None = None,
        engine: RolloutEngine | None = None,
        progress: Progress | None = None,
    ) -> EvalResult:
        """The same in async code; `engine` is one that runs already and stays open."""
        settings = settings or ScoreSettings()
        refuse_containers(self.tasks[: settings.n_tasks], settings.harness.environment)
        subject = as_scored_model(model)
        began = time.perf_counter()
        identity = {"benchmark": self.sha256, "model": subject.ref, **settings.identity}
        running = engine or open_engine(settings.engine, settings.limits)
        kept = PredictionJournal.open(journal, identity)
        try:
            predictions = await _attempt_all(self.tasks[: settings.n_tasks], subject, settings, running, kept, progress)
        finally:
            kept.close()
            if engine is None:
                running.close()
        result = EvalResult(self.name, self.sha256, subject.ref, predictions, seconds=time.perf_counter() - began)
        return scored(result, self.tasks, settings.metrics, settings.breakdown_keys)


async def _attempt_all(
    tasks: Sequence[HarborTask],
    model: ScoredModel,
    settings: ScoreSettings,
    engine: RolloutEngine,
    journal: PredictionJournal,
    progress: Progress | None,
) -> list[Prediction]:
    """Every sample of every task, those of the journal as they were, in the order of the tasks."""
    pairs = [(task, sample) for task in tasks for sample in range(settings.samples)]
    found = {pair: journal.finished[pair] for task, n in pairs if (pair := (task.task_id, n)) in journal.finished}

    artifacts = journal.path.parent / "artifacts" if journal.path else None

    async def attempt(task: HarborTask, sample: int) -> None:
        policy = model.policy(settings.sampling, task.task_id, sample)
        request = RolloutRequest(task, sample, policy, settings.harness, settings.verify, artifacts)
        try:
            [rollout] = await engine.submit([request])
            prediction = Prediction.of(rollout)
        except Exception as error:  # one that breaks the engine must not take the others with it
            prediction = Prediction(task.task_id, sample, "infra", None, error=f"{type(error).__name__}: {error}")
        journal.append(prediction)
        found[task.task_id, sample] = prediction
        if progress is not None:
            progress(len(found), len(pairs))

    missing = [(task, sample) for task, sample in pairs if (task.task_id, sample) not in found]
    if progress is not None:
        progress(len(found), len(pairs))
    await asyncio.gather(*(attempt(task, sample) for task, sample in missing))
    return [found[task.task_id, sample] for task, sample in pairs]
