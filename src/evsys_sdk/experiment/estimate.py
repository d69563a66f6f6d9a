"""What one run would take: steps and tokens, from its real rows and its own recipe, without training anything.

Recipes that learn from rows are set up on the mock backend and asked for some of their batches. What a model will write
is not known beforehand: there is an upper limit, the longest answers allowed, and an expectation, answers as long as
the right ones where those are known. Tokens of other backends are those of the model's own tokenizer where it is on
this machine, else a quarter of the characters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..algorithms.base import BaseAlgorithm
from ..algorithms.combo import Combo
from ..algorithms.on_policy import OnPolicyAlgorithm
from ..algorithms.stages import stage_algorithm
from ..backends.client import ModelSpec
from ..backends.mock.backend import MockBackend
from ..config import DataConfig, ExperimentConfig, RunConfig
from ..config.prices import backend_of
from ..data import apply_transforms, build_transforms, load_rows
from ..eval.row_tasks import target_of, tasks_of_rows
from ..eval.run_eval import ROOM_FOR_ANSWER
from ..inference.renderer import Renderer, get_renderer
from ..protocols import Row
from ..registry import get_data_store
from ..training.blocking import run_blocking
from .benchmark_plan import plan_benchmarks
from .prompts import prompt_of
from .recipe import build_algorithm
from .token_scale import TokenScale, token_scale

if TYPE_CHECKING:
    from ..backends.client import TrainingClient

_ROWS_LOOKED_AT = 512
_BATCHES_BUILT = 32
_MOCK_CONTEXT = 1 << 20


@dataclass(slots=True)
class Estimate:
    """What one run takes, for one seed."""

    steps: int | None = 0
    """None where the recipe does not say before it trains."""
    tokens_trained: int = 0
    tokens_sampled: int = 0
    """As expected, in training and in evaluations, benchmarks and baselines."""
    most_sampled: int = 0
    """The same with every answer as long as it may be."""
    tokenizer: str = ""
    """How tokens were counted, as a sentence."""
    notes: list[str] = field(default_factory=list[str])
    step_lengths: list[int] = field(default_factory=list[int])
    """Sequences of a typical step, in tokens of the mock model, to time it with."""


def estimate_run(run: RunConfig, config: ExperimentConfig) -> Estimate:
    """Look at the rows of a run through its recipe's eyes."""
    store: Any = get_data_store(config.data_store.kind)(**config.data_store.params)

    def load(data: DataConfig) -> list[Row]:
        return list(apply_transforms(load_rows(data, store=store), build_transforms(data.transforms)))

    with tempfile.TemporaryDirectory(prefix="evsys-plan-") as folder:
        hidden = run.backend.params.get("hidden", 64) if run.backend.kind == "mock" else 8
        backend = MockBackend(context_length=_MOCK_CONTEXT, hidden=hidden)
        handles = backend.prepare(model=ModelSpec(run.model.name, seed=run.seed), run_dir=Path(folder))
        try:
            return _Look(run, config, load, handles["training_client"], Path(folder)).estimate()
        finally:
            backend.teardown(handles)


@dataclass(slots=True)
class _Look:
    run: RunConfig
    config: ExperimentConfig
    load: Callable[[DataConfig], list[Row]]
    client: TrainingClient
    folder: Path
    scale: TokenScale = field(default_factory=TokenScale)
    found: Estimate = field(default_factory=Estimate)

    def estimate(self) -> Estimate:
        stages = self._stages()
        samples = [row for _, rows in stages for row in rows[:_ROWS_LOOKED_AT]]
        renderer, model = get_renderer(self.client.tokenizer), self.run.model
        self.scale = token_scale(backend_of(self.run), model.name, samples, renderer, renderer_name=model.renderer_name)
        self.found.tokenizer = self.scale.says
        if not stages:
            self.found.steps = None
            self.found.notes.append(
                f"'{self.run.algorithm.kind}' trains in its own way: steps and tokens are not known"
            )
        for algorithm, rows in stages:
            self._look_at(algorithm, rows, renderer)
        self._add_evaluations()
        return self.found

    def _stages(self) -> list[tuple[BaseAlgorithm, list[Row]]]:
        """Every recipe of the run with its rows; none where the algorithm has a loop of its own."""
        run = self.run
        kind, params = run.algorithm.kind, run.algorithm.params
        if run.continual is not None:
            return [
                (stage_algorithm(kind, {**params, **stage.params}, path="algorithm.kind"), self.load(stage.data))
                for stage in run.continual.stages
            ]
        algorithm: Any = build_algorithm(run)
        rows = self.load(run.data) if run.data else []
        if isinstance(algorithm, Combo):
            phases = algorithm.cfg.phases
            return [
                (
                    stage_algorithm(phase.kind, phase.params, path="phases"),
                    self.load(phase.data) if phase.data else rows,
                )
                for phase in phases
            ]
        return [(algorithm, rows)] if isinstance(algorithm, BaseAlgorithm) else []

    def _look_at(self, algorithm: BaseAlgorithm, rows: Sequence[Row], renderer: Renderer) -> None:
        looked_at = _spread(rows, _ROWS_LOOKED_AT)
        algorithm.bind(
            client=self.client, renderer=renderer, rows=looked_at, seed=self.run.seed, run_dir=self.folder, services={}
        )
        if isinstance(algorithm, OnPolicyAlgorithm):
            return self._look_at_samples(algorithm, rows, renderer)
        try:
            run_blocking(lambda: self._look_at_batches(algorithm, len(rows), len(looked_at)))
        finally:
            algorithm.close()

    async def _look_at_batches(self, algorithm: BaseAlgorithm, n_rows: int, n_looked_at: int) -> None:
        """Set the recipe up on some of its rows and build some of its batches."""
        await algorithm.setup()
        examples = algorithm.n_examples()
        within = max(algorithm.order().steps_per_epoch, 1)
        batches = [await algorithm.build_batch(step) for step in _spread(range(within), _BATCHES_BUILT)]
        steps = _steps(algorithm, round(examples * n_rows / max(n_looked_at, 1)))
        sizes = [sum(len(datum.tokens) for datum in batch.data) for batch in batches]
        self.found.steps = None if self.found.steps is None else self.found.steps + steps
        self.found.tokens_trained += round(steps * fmean(sizes) * self.scale.per_mock_token)
        self.found.step_lengths = [len(datum.tokens) for datum in batches[0].data]

    def _look_at_samples(self, algorithm: OnPolicyAlgorithm, rows: Sequence[Row], renderer: Renderer) -> None:
        """A recipe that learns from its own answers: as many as it asks for, each as long as it may be."""
        cfg: Any = algorithm.cfg
        steps = _steps(algorithm, len(rows))
        prompts = [len(renderer.prompt(prompt_of(row))) for row in _spread(rows, _ROWS_LOOKED_AT)]
        prompt = fmean(prompts or [0]) * self.scale.per_mock_token
        answers = min(cfg.batch_size, max(len(rows), 1)) * getattr(cfg, "group_size", 1)
        sampled_steps = -(-steps // getattr(cfg, "updates_per_batch", 1))
        longest = cfg.sampling.max_tokens
        self.found.steps = None if self.found.steps is None else self.found.steps + steps
        self._sample(sampled_steps * answers, longest, longest)
        self.found.step_lengths = [round(fmean(prompts or [0])) + longest] * answers
        self.found.tokens_trained += round(steps * answers * (prompt + longest))
        if getattr(cfg, "agent", None) is not None or getattr(cfg, "agent_import_path", None) is not None:
            self.found.notes.append("an agent may take several turns for a task; one is counted")

    def _sample(self, answers: int, expected: float, longest: int) -> None:
        self.found.tokens_sampled += round(answers * min(expected, longest))
        self.found.most_sampled += answers * longest

    def _add_evaluations(self) -> None:
        run, steps = self.run, self.found.steps or 0
        if run.eval.enabled and run.eval.metrics:
            every: int | None = run.algorithm.params.get("eval_every")
            held_out = [run.eval.eval_data or run.data] if run.continual is None else _stage_data(run)
            rows = [row for data in held_out if data is not None for row in self.load(data)[: run.eval.n_samples]]
            seen = tasks_of_rows(_spread(rows, _ROWS_LOOKED_AT)) if rows else []
            lengths = [self._length(target_of(task)) for task in seen] or [0.0]
            times = 1 + (1 + (steps - 1) // every if every and steps else 0)
            self._sample(len(rows) * times, fmean(lengths), round(max(2 * max(lengths), ROOM_FOR_ANSWER)))
        algorithm: Any = build_algorithm(run)
        for planned in plan_benchmarks(self.config.metadata, algorithm, seed=run.seed):
            entry, settings = planned.entry, planned.settings
            tasks, longest = planned.benchmark.tasks[: settings.n_tasks], settings.sampling.max_tokens
            right = [getattr(task.verifier, "expected", None) for task in _spread(tasks, _ROWS_LOOKED_AT)]
            lengths = [self._length(answer) if isinstance(answer, str) else longest for answer in right]
            times = 1 + ((steps - 1) // entry.run_every if entry.run_every and steps else 0) + len(entry.models)
            self._sample(len(tasks) * settings.samples * times, fmean(lengths), longest)

    def _length(self, text: str) -> float:
        return (len(self.client.tokenizer.encode(text)) + 1) * self.scale.per_mock_token


def _steps(algorithm: BaseAlgorithm, n_examples: int) -> int:
    """How many steps the recipe takes on this many examples, by its own rule."""
    algorithm.n_examples = lambda: max(n_examples, 1)
    return algorithm.total_steps()


def _stage_data(run: RunConfig) -> list[DataConfig]:
    """What is scored over a continual run: after each stage, its held-out rows and those of the ones before."""
    assert run.continual is not None
    seen = [stage.eval_data for stage in run.continual.stages]
    return [data for at in range(len(seen)) for data in seen[: at + 1] if data is not None]


def _spread[T](items: Sequence[T], most: int) -> list[T]:
    """At most this many items, evenly from beginning to end."""
    if len(items) <= most:
        return list(items)
    return [items[at * len(items) // most] for at in range(most)]
