"""`run.eval`: evaluation rows of a run, scored like any benchmark.

The trained model answers through the backend's sampler. An `inference` block that names a model or a hosted client
scores that model instead; otherwise the block only sets sampling params.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ContinualStage, DataConfig, EvalConfig, InferenceSpec
from ..data.types import HarborTask
from ..data.workspace.reference import slug
from ..errors import EvalError
from ..inference.renderer import Renderer
from ..log import get_logger
from ..protocols import Row
from ..record.layout import RunFiles
from ..record.run_files.scores import ScoreLog
from ..rollouts.engine import EngineLimits
from ..rollouts.rollout import opening
from ..training.callback import EvalRecord, Observers
from .benchmark import Benchmark, ScoreSettings
from .row_tasks import target_of, tasks_of_rows
from .scored_model import ClientModel, SamplerModel, Sampling, ScoredModel, as_scored_model, open_client
from .scores import EvalResult, warn_of_zeros

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

ROOM_FOR_ANSWER = 256
"""Smallest `max_tokens` of an answer; a longer target gets twice its length."""
_LONGEST_S = 24 * 3600.0
_OWN_MODEL = ("mock", "local", "tinker")
"""Clients that can sample the trained weights."""
_MODEL_PARAMS = ("model", "checkpoint")


def names_another_model(inference: InferenceSpec | None) -> bool:
    """Whether a block names another model than the trained one."""
    if inference is None:
        return False
    return inference.kind not in _OWN_MODEL or any(inference.params.get(name) for name in _MODEL_PARAMS)


@dataclass(slots=True)
class RunEvaluator:
    """Scores the current weights of one run."""

    config: EvalConfig
    client: TrainingClient | None
    """None if the backend has no training client; then `eval.inference` must name a model."""
    renderer: Renderer | None
    observers: Observers
    load_rows: Callable[[DataConfig], Sequence[Row]]
    train_rows: Sequence[Row]
    run_dir: Path | None = None
    """Folder that records scores and answers."""
    attempt: int = 1
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Split and stage that could not be scored -> reason."""
    _tasks: list[HarborTask] | None = None
    _answered: set[str] = field(default_factory=set[str])
    """Splits and stages with a score above 0 so far."""

    @property
    def failure(self) -> str | None:
        """All reasons for missing scores as one text; None if there are none."""
        return "; ".join(self.failures.values()) or None

    @property
    def is_enabled(self) -> bool:
        """Whether the run itself is scored; the stages of a continual run are scored in any case."""
        return self.scores_stages and (self.config.eval_data is not None or bool(self.train_rows))

    @property
    def scores_stages(self) -> bool:
        """Whether the config names any metric at all."""
        return self.config.enabled and bool(self.config.metrics)

    @property
    def keys(self) -> list[str]:
        """The names of the metrics."""
        return [f"{self.prefix}/{label}" for label in ScoreSettings(metrics=self.config.metrics).build_metrics()]

    @property
    def prefix(self) -> str:
        """`eval` for held-out rows, `train_fit` for training rows."""
        return "eval" if self.config.eval_data is not None else "train_fit"

    @property
    def selection_metric(self) -> str | None:
        """The metric that may select a checkpoint; never one of training rows or of another model."""
        another = names_another_model(self.config.inference)
        return self.keys[0] if self.is_enabled and self.config.eval_data and not another else None

    async def __call__(self, step: int) -> Mapping[str, float]:
        """Score a frozen copy of the weights after `step`."""
        record = await self._score(self._run_tasks, step=step, name="", split=self.prefix)
        return record.named_metrics if record else {}

    async def score_stage(self, stage: ContinualStage, step: int) -> Mapping[str, float]:
        """Score the current weights on the held-out rows of one stage of a continual run."""
        held_out = stage.eval_data
        assert held_out is not None
        record = await self._score(lambda: self._tasks_of(held_out), step=step, name=stage.name, split="eval")
        return {name: value for name, value in record.metrics.items() if "/" not in name} if record else {}

    async def _score(
        self, load: Callable[[], Sequence[HarborTask]], *, step: int, name: str, split: str
    ) -> EvalRecord | None:
        """The scores, or None: a failure is logged and recorded, and training continues."""
        what = f"{split}/{name}".rstrip("/")
        self.failures.pop(what, None)  # a failure at an earlier step may be over
        try:
            tasks = load()
            result = await self._sample_and_score(tasks, what, step)
            if result.problem is not None:
                raise EvalError(result.problem)
        except Exception as error:
            self.failures[what] = f"{type(error).__name__}: {error}"
            get_logger(__name__).error("the evaluation after step %d failed: %s", step, self.failures[what])
            return None
        if what not in self._answered:  # a stage that scored before is forgotten, which retention reports
            warn_of_zeros(result, self.run_dir, step)
        self._answered |= {what} if result.saturated != 0 else set()
        errors = {f"{label}/stderr": score.stderr for label, score in result.metrics.items()}
        values = {label: score.value for label, score in result.metrics.items()}
        values |= {label: stderr for label, stderr in errors.items() if stderr is not None}
        record = EvalRecord(name, split, step, values, _show(tasks, result))
        if self.run_dir is not None:
            ScoreLog(self.run_dir).add(record, result)
        self.observers.on_eval(record)
        return record

    async def _sample_and_score(self, tasks: Sequence[HarborTask], what: str, step: int) -> EvalResult:
        encode = str.encode if self.client is None else self.client.tokenizer.encode
        longest = max(len(encode(target_of(task))) for task in tasks)
        sampling = _choose_sampling(self.config.inference, room=max(2 * longest, ROOM_FOR_ANSWER))
        model = await self._model(step)
        split, _, name = what.partition("/")
        journal = None if self.run_dir is None else RunFiles(self.run_dir).predictions(slug(f"{split}-{name}"), step)
        # The backend batches requests, so all are sent at once.
        concurrency = getattr(model.client, "concurrency", 1) if isinstance(model, ClientModel) else len(tasks)
        limits = EngineLimits(concurrency=concurrency, timeout_s=_LONGEST_S)
        settings = ScoreSettings(sampling=sampling, metrics=self.config.metrics, limits=limits)
        try:
            return await Benchmark.of(tasks, name=what).score_async(model, settings, journal=journal)
        finally:
            if isinstance(model, ClientModel):
                model.client.close()

    async def _model(self, step: int) -> ScoredModel:
        inference = self.config.inference
        if inference is not None and names_another_model(inference):
            return as_scored_model(open_client(inference.kind, inference.params, path="eval.inference.params"))
        assert self.client is not None
        assert self.renderer is not None
        sampler = await self.client.sampler()
        # Steps repeated after a resume give other weights; answers of the earlier attempt do not count for them.
        ref = sampler.ref or f"step {step} of attempt {self.attempt}"
        return SamplerModel(sampler, self.renderer, self.client.capabilities.context_length, ref)

    def _run_tasks(self) -> list[HarborTask]:
        if self._tasks is None:
            if self.config.eval_data is not None:
                self._tasks = self._tasks_of(self.config.eval_data)
            else:
                self._tasks = tasks_of_rows(self.train_rows[: self.config.n_samples])
        return self._tasks

    def _tasks_of(self, data: DataConfig) -> list[HarborTask]:
        return tasks_of_rows(self.load_rows(data)[: self.config.n_samples])


def _choose_sampling(inference: InferenceSpec | None, *, room: int) -> Sampling:
    """Sampling params of the block; by default greedy with at most `room` tokens."""
    # A separate seed, so that scoring does not change the later samples of the run.
    params: dict[str, Any] = {} if inference is None else inference.params
    chosen = {name: params[name] for name in ("max_tokens", "temperature", "seed") if params.get(name) is not None}
    return replace(Sampling(max_tokens=room), **chosen)


def _show(tasks: Sequence[HarborTask], result: EvalResult) -> list[dict[str, Any]]:
    by_id = {task.task_id: task for task in tasks}
    return [
        {"prompt": opening(by_id[answer.task_id]), "target": getattr(by_id[answer.task_id].verifier, "expected", None)}
        | answer.shown
        for answer in result.predictions
    ]
