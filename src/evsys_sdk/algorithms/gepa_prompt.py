"""`gepa_prompt`: optimises the system prompt instead of the weights, by reflection with the package `gepa`.

A model reads the results of the current prompt on a few rows and proposes a new one. A proposal that improves there is
scored on the validation rows, and the search continues from the prompts that are best on some row. The budget counts
scored answers and is never exceeded: the search ends before a step that might not fit.

    algorithm:
      kind: gepa_prompt
      params:
        budget: 200
        reflection: { kind: openai, params: { model: gpt-4.1 } }
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from ..config.base import Strict
from ..config.building import build_extension
from ..config.fields import NOT_SEARCHED
from ..config.specs import InferenceSpec
from ..data import TargetFormat, detect_format, parse_rows
from ..data.types import HarborTask, InProcessVerifier
from ..errors import ConfigError, DataError, Problem, TrainingError
from ..inference.adapter import as_chat_client, close_client
from ..protocols import AlgorithmTraits, Row, RunContext, RunNotes, RunResult
from ..record.run_files.checkpoints import Checkpoint, CheckpointLog
from ..record.run_files.prompt_calls import PromptCalls
from ..registry import get_inference
from ..rollouts.environment import NoEnvironment
from ..rollouts.policy import SamplerPolicy
from ..rollouts.rollout import Rollout, Turn, opening
from ..training.blocking import run_blocking
from ..training.services import RunServices, services_of
from .base import PlannedWork

if TYPE_CHECKING:
    from ..inference.client import ChatClient

_COMPONENT = "system_prompt"
_FEWEST_PROPOSALS = 3
_PROMPT_TOKENS = 4096
"""Maximum length of a proposed prompt."""


class GepaPrompt:
    """Searches a system prompt by reflection; the weights stay unchanged."""

    name: ClassVar[str] = "gepa_prompt"

    class Config(Strict):
        """Parameters of `gepa_prompt`."""

        reflection: InferenceSpec
        """The model that proposes prompts; use a strong one."""
        task: InferenceSpec | None = None
        """The model that uses the prompt; by default the run's own, which benchmarks also score."""
        seed_prompt: str = "You are a helpful assistant."
        """Start of the search."""
        budget: int = Field(default=200, ge=1, json_schema_extra=NOT_SEARCHED)
        """Number of answers that may be scored."""
        minibatch: int = Field(default=3, ge=1)
        """Rows to test a new prompt on before it is scored on all validation rows."""
        val_share: float = Field(default=0.5, gt=0, lt=1)
        """Share of rows for scoring; the others are for reflection."""
        max_tokens: int = Field(default=256, ge=1)
        """Maximum answer length."""
        temperature: float = Field(default=0.0, ge=0)
        """Sampling temperature of the answers."""
        patience: int = Field(default=10, ge=1)
        """End after this many proposals without an improvement."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def traits(self) -> AlgorithmTraits:
        return AlgorithmTraits(selection_metric="val/score", selection_mode="max")

    def train(self, ctx: RunContext) -> RunResult:
        """Search until the budget, a perfect score or `patience` is reached."""
        services = services_of(ctx)
        if services.evaluate is not None:  # run.eval would score the model without the prompt
            message = "gepa_prompt does not train weights, so run.eval has nothing to score"
            raise ConfigError(Problem(message, path="run.eval", hint="Use metadata.benchmark, and remove run.eval."))
        train, val = self._split(ctx.extras["train_rows"])
        calls = PromptCalls(ctx.output_dir)
        search = _Search(self.cfg, services, calls)
        try:
            outcome = search.run(train, val, services.seed)
            return self._conclude(ctx, services, outcome, str(calls.conclude(outcome)))
        finally:
            calls.close()
            search.close()

    def plan(self, rows: Sequence[Row]) -> PlannedWork:
        """The maximum work of a search; a budget that is too small is refused."""
        train, val = self._split(rows)
        cfg = self.cfg
        fewest = 2 * min(cfg.minibatch, len(train))  # a proposal without improvement on its rows is dropped
        proposals = (cfg.budget - len(val)) // fewest
        uses_run_model = cfg.task is None
        usage = f"{cfg.reflection.kind} writes at most {proposals} prompts of at most {_PROMPT_TOKENS} tokens"
        if cfg.task is not None:
            usage += f", {cfg.task.kind} at most {cfg.budget} answers of at most {cfg.max_tokens}"
        return PlannedWork(
            0, 0.0, (),
            answers_sampled=cfg.budget if uses_run_model else 0,
            answer_tokens=cfg.max_tokens,
            note=f"prompt tuning scores at most {cfg.budget} answers; {usage}, whose cost is not included",
        )  # fmt: skip

    def _split(self, rows: Sequence[Row]) -> tuple[list[HarborTask], list[HarborTask]]:
        tasks = [_as_task(row, at) for at, row in enumerate(rows)]
        n_val = max(1, round(len(tasks) * self.cfg.val_share))
        train, val = tasks[n_val:], tasks[:n_val]
        if not train:
            raise DataError(
                f"{len(tasks)} rows are too few to tune a prompt: it needs rows for scoring and for reflection."
            )
        # The seed prompt is scored once; each proposal on a minibatch together with its parent, then on all rows.
        needed = len(val) + _FEWEST_PROPOSALS * (2 * min(self.cfg.minibatch, len(train)) + len(val))
        if self.cfg.budget < needed:
            message = f"this budget is not enough for {_FEWEST_PROPOSALS} proposals on {len(val)} validation rows"
            hint = f"Use {needed} or more, or a smaller val_share."
            raise ConfigError(Problem(message, path="algorithm.params.budget", value=self.cfg.budget, hint=hint))
        return train, val

    def _conclude(self, ctx: RunContext, services: RunServices, outcome: dict[str, Any], file: str) -> RunResult:
        artifacts, steps = {"prompts": file}, int(outcome["proposals"])
        scores = {"val/score": outcome["best_score"], "val/seed_score": outcome["seed_score"]}
        metrics = {**scores, "steps": float(steps), "metric_calls": float(outcome["metric_calls"])}
        services.observers.on_step(steps, metrics)
        renderer = services.renderer.name if services.renderer else None
        if self.cfg.task is None and services.client is not None:
            log = CheckpointLog.in_dir(ctx.output_dir)
            checkpoint = log.last()
            if checkpoint is None:
                sampler = services.client.sampler("prompted").result().ref
                state = services.client.save_state("prompted").result()
                checkpoint = Checkpoint(
                    "prompted", steps, state, sampler, final=True, metrics=metrics, renderer=renderer
                )
                log.append(checkpoint)
            artifacts |= {"final_sampler": checkpoint.sampler, "final_checkpoint": checkpoint.state}
        prompt = outcome["best"] if self.cfg.task is None else None
        notes = RunNotes(renderer=renderer, selection_metric="val/score", selection_mode="max", system_prompt=prompt)
        return RunResult(ctx.run_id, "completed", metrics, artifacts, notes=notes)


def _as_task(row: Row, at: int) -> HarborTask:
    """A row as a task: prompt examples are verified by exact match with the expected answer."""
    if detect_format(row) == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return task
    [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
    if example.expected is None:
        raise DataError(f"row {at + 1} has no expected answer to score a prompt by. Add 'expected'.")
    question = "\n".join(str(value) for value in example.inputs.values())
    return HarborTask(f"row-{at}", question, InProcessVerifier("exact_match", example.expected), example.metadata)


@dataclass(slots=True)
class _Search:
    """The adapter for `gepa`: scores prompts and builds the reflection data."""

    cfg: GepaPrompt.Config
    services: RunServices
    calls: PromptCalls
    used: int = 0
    proposals: int = 0
    failure: Exception | None = None
    """The error of the reflecting model; the package would continue without it."""
    propose_new_texts: None = None
    """Required by the package's interface; None uses its own proposals."""
    _client: ChatClient | None = field(default=None, init=False)
    _policy: SamplerPolicy | None = field(default=None, init=False)
    _reflect: ChatClient | None = field(default=None, init=False)

    def run(self, train: list[HarborTask], val: list[HarborTask], seed: int) -> dict[str, Any]:
        package: Any = import_module("gepa")
        stoppers: Any = import_module("gepa.utils.stop_condition")
        self._open()
        batch = min(self.cfg.minibatch, len(train))
        longest_step = 2 * batch + len(val)  # steps are not interrupted, so one that may not fit is not started
        result: Any = package.optimize(
            seed_candidate={_COMPONENT: self.cfg.seed_prompt},
            trainset=train,
            valset=val,
            adapter=self,
            reflection_lm=self._query_reflection,
            reflection_minibatch_size=batch,
            stop_callbacks=[
                partial(self._is_over, longest_step),
                stoppers.ScoreThresholdStopper(1.0),
                stoppers.NoImprovementStopper(self.cfg.patience),
            ],
            logger=_Quiet(),
            seed=seed,
        )
        if self.failure is not None:
            raise self.failure
        scores = [float(score) for score in result.val_aggregate_scores]
        best = max(range(len(scores)), key=lambda at: scores[at])
        return {
            "best": result.candidates[best][_COMPONENT],
            "best_score": scores[best],
            "seed_score": scores[0],
            "metric_calls": self.used,
            "proposals": self.proposals,
            "candidates": [
                {"prompt": candidate[_COMPONENT], "score": score, "parents": list(parents)}
                for candidate, score, parents in zip(result.candidates, scores, result.parents, strict=True)
            ],
            "pareto": {
                str(row): sorted(owners) for row, owners in dict(result.per_val_instance_best_candidates).items()
            },
        }

    def _is_over(self, longest_step: int, state: Any) -> bool:
        """Whether to start no further step: one has failed, or the next might not fit."""
        return self.failure is not None or self.used + longest_step > self.cfg.budget

    def evaluate(self, batch: list[HarborTask], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Score a prompt on some rows."""
        # Cached answers count too, so that a resumed search ends at the same point.
        self.used += len(batch)
        prompt = candidate[_COMPONENT]
        answers = run_blocking(lambda: self._answer_all(prompt, batch))
        outputs, scores = [answer["answer"] for answer in answers], [answer["score"] for answer in answers]
        traces = (
            [{**answer, "task": task} for task, answer in zip(batch, answers, strict=True)] if capture_traces else None
        )
        adapter: Any = import_module("gepa.core.adapter")
        return adapter.EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The reflecting model's information about each row."""
        examples: list[dict[str, Any]] = []
        for trace in eval_batch.trajectories:
            expected = getattr(trace["task"].verifier, "expected", None)
            feedback = f"It scored {trace['score']:g}." + ("" if expected is None else f" Expected: {expected}")
            examples.append(
                {"Inputs": trace["task"].instruction, "Generated Outputs": trace["answer"], "Feedback": feedback}
            )
        return dict.fromkeys(components_to_update, examples)

    def _open(self) -> None:
        cfg, services = self.cfg, self.services
        self._reflect = _open_client(cfg.reflection, "algorithm.params.reflection")
        if cfg.task is not None:
            self._client = _open_client(cfg.task, "algorithm.params.task")
            return
        if services.client is None or services.renderer is None:
            raise TrainingError("this backend has no model to sample from. Set algorithm.params.task.")
        from ..backends.client import SamplingParams

        params = SamplingParams(cfg.max_tokens, cfg.temperature)
        sampler, length = services.client.sampler().result(), services.client.capabilities.context_length
        self._policy = SamplerPolicy(sampler, services.renderer, params, length, services.seed)

    def close(self) -> None:
        """Release the clients of both models."""
        for client in (self._reflect, self._client):
            close_client(client)

    async def _answer_all(self, prompt: str, tasks: Sequence[HarborTask]) -> list[dict[str, Any]]:
        return [await self._answer(prompt, task) for task in tasks]

    async def _answer(self, prompt: str, task: HarborTask) -> dict[str, Any]:
        key = _key("task", prompt, task.task_id)
        # A resumed search reuses stored answers.
        if (stored := self.calls.find(key)) is not None:
            return stored
        messages = [{"role": "system", "content": prompt}, *opening(task)]
        if self._policy is not None:
            turn = await self._policy.act(messages)
        else:
            assert self._client is not None
            [completion] = await self._client.complete(
                messages, max_tokens=self.cfg.max_tokens, temperature=self.cfg.temperature
            )
            turn = Turn(completion.message)
        rollout = Rollout(task.task_id, 0, "ok", None, [turn], [*messages, turn.message])
        verdict = await self.services.verify(task, rollout, NoEnvironment())
        return self.calls.add(key, task=task.task_id, prompt=prompt, answer=rollout.completion, score=verdict.reward)

    def _query_reflection(self, prompt: Any) -> str:
        """The reflecting model's answer; each question is sent once."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        self.proposals += 1
        # The number makes a repeated question a new request, for a different proposal.
        key = _key("reflection", messages, str(self.proposals))
        if (stored := self.calls.find(key)) is None:
            client = self._reflect
            assert client is not None
            try:
                [completion] = run_blocking(
                    lambda: client.complete(messages, max_tokens=_PROMPT_TOKENS, temperature=1.0)
                )
            except Exception as error:
                self.failure = error
                raise
            stored = self.calls.add(key, question=messages, answer=completion.text)
        return str(stored["answer"])


class _Quiet:
    """Suppresses the package's log, whose content is in the record."""

    def log(self, message: str) -> None:
        pass


def _open_client(spec: InferenceSpec, path: str) -> ChatClient:
    what = f"inference client '{spec.kind}'"
    return as_chat_client(build_extension(get_inference(spec.kind), spec.arguments, what=what, path=f"{path}.params"))


def _key(kind: str, *parts: Any) -> str:
    content = json.dumps([kind, *parts], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
