"""Estimate the steps and tokens of a run from its rows and its recipe, without training.

Recipes are bound to some of their rows on the mock backend and return their plan. Sampled tokens have an upper limit,
with every answer as long as allowed, and an expectation, with answers as long as the expected ones. Tokens are counted
with the model's tokenizer if it is on this machine, else as a quarter of the characters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...algorithms.base import BaseAlgorithm, PlannedWork
from ...algorithms.gepa_prompt import GepaPrompt
from ...algorithms.on_policy import conversation_of
from ...backends.client import ModelSpec
from ...backends.mock.backend import MockBackend
from ...config import DataConfig, ExperimentConfig, RunConfig
from ...config.prices import backend_of
from ...eval.row_tasks import target_of, tasks_of_rows
from ...eval.run_eval import ROOM_FOR_ANSWER
from ...inference.renderer import Renderer, get_renderer
from ...protocols import Row
from ...training.blocking import run_blocking
from ...training.callback import Observers, RunControl
from ...training.services import RunServices
from ..arms.recipe import build_algorithm, pair_stages
from ..arms.rows import row_reader
from ..benchmark_plan import plan_benchmarks

if TYPE_CHECKING:
    from ...backends.client import TrainingClient


_BYTES_PER_TOKEN = 4
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Tokens of the model per token of the mock model, which is a byte, and the source of this factor."""

    per_mock_token: float = 1.0
    description: str = "tokens are those of the mock backend"


def token_scale(
    backend: str, model: str, rows: Sequence[Row], mock: Renderer, *, renderer_name: str | None = None
) -> TokenScale:
    """The factor for a model on a backend, measured on some rows if its tokenizer is on this machine."""
    if backend == "mock":
        return TokenScale()
    tokenizer = _local_tokenizer(model)
    if tokenizer is None or not rows:
        return TokenScale(1 / _BYTES_PER_TOKEN, f"tokens are characters / {_BYTES_PER_TOKEN}: '{model}' is not here")
    description = f"tokens are those of '{model}', on real rows"
    try:
        real = get_renderer(tokenizer, renderer_name)
        conversations = [conversation_of(row) for row in rows[:_MOST_ROWS]]
        sizes = [(len(real.prompt(messages)), len(mock.prompt(messages))) for messages in conversations]
        return TokenScale(sum(size for size, _ in sizes) / sum(size for _, size in sizes), description)
    except Exception:  # rows without conversations, or a template that refuses them: count their text
        text = "\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in rows[:_MOST_ROWS])
        return TokenScale(len(tokenizer.encode(text)) / len(text.encode()), description)


def _local_tokenizer(model: str) -> Any | None:
    """The tokenizer of a model if it is on this machine, else None."""
    if find_spec("transformers") is None:
        return None
    try:
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        return AutoTokenizer.from_pretrained(model, local_files_only=True)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    except Exception:  # missing or damaged
        return None


_ROWS_LOOKED_AT = 512
_MOCK_CONTEXT = 1 << 20
"""Long enough for rows of a real model, because a token of the mock model is a byte."""
_NO_MATTER_OF_SIZE = (
    "learning_rate",
    "lr_schedule",
    "warmup_steps",
    "weight_decay",
    "grad_clip_norm",
    "lora_rank",
    "beta",
)
"""Params that change what is learned, but not the amount of work; most axes of a matrix are among them."""


@dataclass(slots=True)
class RunEstimate:
    """Steps and tokens of one run with one seed."""

    steps: int | None = 0
    """None if the recipe does not know before training."""
    tokens_trained: int = 0
    tokens_sampled: int = 0
    """Expected number, in training, evaluations, benchmarks and baselines."""
    most_sampled: int = 0
    """The same, with every answer as long as allowed."""
    tokenizer: str = ""
    """How tokens were counted."""
    notes: list[str] = field(default_factory=list[str])
    step_lengths: list[int] = field(default_factory=list[int])
    """Lengths of the sequences of a typical step, in mock tokens, for timing."""
    per_mock_token: float = 1.0
    """Tokens of the model per mock token."""
    sampled_in_training: int = 0
    """The part of `tokens_sampled` that rollouts take."""


def size_of_work(run: RunConfig) -> str:
    """A key that is equal for runs with the same amount of work, so that each amount is estimated once."""
    content = run.model_dump(mode="json", exclude={"name", "seed", "tags"})
    for param in _NO_MATTER_OF_SIZE:
        content["algorithm"]["params"].pop(param, None)
    return json.dumps(content, sort_keys=True)


def estimate_run(run: RunConfig, config: ExperimentConfig) -> RunEstimate:
    """Estimate a run by the plans of its recipes."""
    with tempfile.TemporaryDirectory(prefix="evsys-plan-") as folder:
        hidden = run.backend.params.get("hidden", 64) if run.backend.kind == "mock" else 8
        backend = MockBackend(context_length=_MOCK_CONTEXT, hidden=hidden)
        handles = backend.prepare(model=ModelSpec(run.model.name, seed=run.seed), run_dir=Path(folder))
        try:
            return _DryRun(
                run, config, row_reader(config.data_store), handles["training_client"], Path(folder)
            ).estimate()
        finally:
            backend.teardown(handles)


@dataclass(slots=True)
class _DryRun:
    run: RunConfig
    config: ExperimentConfig
    load: Callable[[DataConfig], list[Row]]
    client: TrainingClient
    folder: Path
    scale: TokenScale = field(default_factory=TokenScale)
    estimated: RunEstimate = field(default_factory=RunEstimate)

    def estimate(self) -> RunEstimate:
        stages = self._stages()
        samples = [row for _, rows in stages for row in rows[:_ROWS_LOOKED_AT]]
        renderer, model = get_renderer(self.client.tokenizer), self.run.model
        self.scale = token_scale(backend_of(self.run), model.name, samples, renderer, renderer_name=model.renderer_name)
        self.estimated.tokenizer, self.estimated.per_mock_token = self.scale.description, self.scale.per_mock_token
        if not stages:
            self.estimated.steps = None
            self.estimated.notes.append(
                f"'{self.run.algorithm.kind}' trains in its own way: steps and tokens are not known"
            )
        for algorithm, rows in stages:
            self._add(self._plan(algorithm, rows, renderer))
        self._add_evaluations()
        return self.estimated

    def _stages(self) -> list[tuple[BaseAlgorithm | GepaPrompt, list[Row]]]:
        """Every recipe of the run with its rows; none where the algorithm has its own training loop."""
        paired = pair_stages(self.run, build_algorithm(self.run))
        return [
            (recipe, self.load(stage.data) if stage.data else [])
            for stage, recipe in paired
            if isinstance(recipe, BaseAlgorithm | GepaPrompt)
        ]

    def _plan(self, algorithm: BaseAlgorithm | GepaPrompt, rows: Sequence[Row], renderer: Renderer) -> PlannedWork:
        """The plan of a recipe, which is bound to some of its rows."""
        if isinstance(algorithm, GepaPrompt):
            return algorithm.plan(rows)
        seed = self.run.seed
        services = RunServices(Observers([]), RunControl(), _sample_nothing, self.load, self.client, renderer, seed)
        algorithm.bind(
            client=self.client,
            renderer=renderer,
            rows=_spread(rows, _ROWS_LOOKED_AT),
            seed=seed,
            run_dir=self.folder,
            services=services,
        )
        try:
            return run_blocking(lambda: algorithm.plan(len(rows)))
        finally:
            algorithm.close()

    def _add(self, work: PlannedWork) -> None:
        estimate, answers = self.estimated, work.answers_trained * work.answer_tokens
        estimate.steps = None if estimate.steps is None else estimate.steps + work.steps
        estimate.tokens_trained += round(work.tokens_trained * self.scale.per_mock_token + answers)
        estimate.step_lengths = list(work.step_lengths) or estimate.step_lengths
        estimate.notes += [work.note] if work.note else []
        self._sample(work.answers_sampled, work.answer_tokens, work.answer_tokens)
        estimate.sampled_in_training = estimate.tokens_sampled

    def _sample(self, answers: int, expected: float, longest: int) -> None:
        self.estimated.tokens_sampled += round(answers * min(expected, longest))
        self.estimated.most_sampled += answers * longest

    def _add_evaluations(self) -> None:
        run, steps = self.run, self.estimated.steps or 0
        if run.eval.enabled and run.eval.metrics:
            every: int | None = run.algorithm.params.get("eval_every")
            held_out = [run.eval.eval_data or run.data]
            if run.continual is not None:  # each stage is scored on its own and all earlier held-out rows
                each = [stage.eval_data for stage in run.stages()]
                held_out = [data for at in range(len(each)) for data in each[: at + 1]]
            rows = [row for data in held_out if data is not None for row in self.load(data)[: run.eval.n_samples]]
            sample = tasks_of_rows(_spread(rows, _ROWS_LOOKED_AT)) if rows else []
            lengths = [self._length(target_of(task)) for task in sample] or [0.0]
            times = 1 + (1 + (steps - 1) // every if every and steps else 0)
            self._sample(len(rows) * times, fmean(lengths), round(max(2 * max(lengths), ROOM_FOR_ANSWER)))
        algorithm: Any = build_algorithm(run)
        for planned in plan_benchmarks(self.config.metadata, algorithm, seed=run.seed):
            entry, settings = planned.entry, planned.settings
            tasks, longest = planned.benchmark.tasks[: settings.n_tasks], settings.sampling.max_tokens
            sample = _spread(tasks, _ROWS_LOOKED_AT)
            expected = [getattr(task.verifier, "expected", None) for task in sample]
            lengths = [self._length(answer) if isinstance(answer, str) else longest for answer in expected]
            in_loop = max(steps - 1, 0) // entry.run_every if entry.run_every else 0
            # During training, after it, and for each baseline.
            answers = len(tasks) * settings.samples * (in_loop + 1 + len(entry.models))
            self._sample(answers, min(fmean(lengths), longest), longest)

    def _length(self, text: str) -> float:
        return (len(self.client.tokenizer.encode(text)) + 1) * self.scale.per_mock_token  # with an end token


async def _sample_nothing(*_: Any) -> Any:
    raise AssertionError("a plan samples nothing")


def _spread[T](items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[at * len(items) // most] for at in range(most)]
