"""`gepa_prompt`: a better system prompt instead of other weights, searched by reflection with the package `gepa`.

A model reads how the current prompt did on a few rows and writes another one; what does better there is scored on the
validation rows, and the prompts that are best on some row are the ones to continue from. The budget counts answers that
are scored and is never exceeded: the search ends before a step that might not fit.

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
"""Longest prompt that the reflecting model may write."""


class GepaPrompt:
    """Searches a system prompt by reflection; the weights stay as they are."""

    name: ClassVar[str] = "gepa_prompt"

    class Config(Strict):
        """Parameters of `gepa_prompt`."""

        reflection: InferenceSpec
        """The model that writes new prompts; it should be a strong one."""
        task: InferenceSpec | None = None
        """The model whose prompt it is; by default the run's own, which is also what benchmarks score."""
        seed_prompt: str = "You are a helpful assistant."
        """Where the search begins."""
        budget: int = Field(default=200, ge=1, json_schema_extra=NOT_SEARCHED)
        """Answers that may be scored."""
        minibatch: int = Field(default=3, ge=1)
        """Rows that a new prompt is tried on before it is scored on all validation rows."""
        val_share: float = Field(default=0.5, gt=0, lt=1)
        """Share of the rows that prompts are scored on; the others are reflected on."""
        max_tokens: int = Field(default=256, ge=1)
        """Longest answer."""
        temperature: float = Field(default=0.0, ge=0)
        """Of the answers."""
        patience: int = Field(default=10, ge=1)
        """Ends after so many proposals without a better prompt."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def traits(self) -> AlgorithmTraits:
        return AlgorithmTraits(selection_metric="val/score", selection_mode="max")

    def train(self, ctx: RunContext) -> RunResult:
        """Search until the budget, a perfect score or the patience ends it."""
        services = services_of(ctx)
        if services.evaluate is not None:  # it would score the model without the prompt
            message = "gepa_prompt trains no weights that run.eval could score"
            raise ConfigError(Problem(message, path="run.eval", hint="Use metadata.benchmark, and remove run.eval."))
        train, val = self._split(ctx.extras["train_rows"])
        calls = PromptCalls(ctx.output_dir)
        asking = _Search(self.cfg, services, calls)
        try:
            outcome = asking.run(train, val, services.seed)
            return self._conclude(ctx, services, outcome, str(calls.conclude(outcome)))
        finally:
            calls.close()
            asking.close()

    def plan(self, rows: Sequence[Row]) -> PlannedWork:
        """What a search takes at most, and what is asked of other models; a budget that is too small is refused."""
        train, val = self._split(rows)
        cfg = self.cfg
        fewest = 2 * min(cfg.minibatch, len(train))  # a proposal that is no better on its rows goes no further
        proposals = (cfg.budget - len(val)) // fewest
        own = cfg.task is None
        asked = f"{cfg.reflection.kind} is asked for at most {proposals} prompts of at most {_PROMPT_TOKENS} tokens"
        if cfg.task is not None:
            asked += f", {cfg.task.kind} for at most {cfg.budget} answers of at most {cfg.max_tokens}"
        return PlannedWork(
            0, 0.0, (),
            answers_sampled=cfg.budget if own else 0,
            answer_tokens=cfg.max_tokens,
            note=f"tuning the prompt scores at most {cfg.budget} answers; {asked}, whose price is not in the sum",
        )  # fmt: skip

    def _split(self, rows: Sequence[Row]) -> tuple[list[HarborTask], list[HarborTask]]:
        tasks = [_as_task(row, at) for at, row in enumerate(rows)]
        n_val = max(1, round(len(tasks) * self.cfg.val_share))
        train, val = tasks[n_val:], tasks[:n_val]
        if not train:
            raise DataError(f"{len(tasks)} rows are too few to tune a prompt on: some are scored on, others read.")
        # The seed prompt is scored once; each proposal is tried on a few rows next to its parent, and then on all.
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
            known = log.last()
            if known is None:
                sampler = services.client.sampler("prompted").result().ref
                state = services.client.save_state("prompted").result()
                known = Checkpoint("prompted", steps, state, sampler, final=True, metrics=metrics, renderer=renderer)
                log.append(known)
            artifacts |= {"final_sampler": known.sampler, "final_checkpoint": known.state}
        prompt = outcome["best"] if self.cfg.task is None else None
        notes = RunNotes(renderer=renderer, selection_metric="val/score", selection_mode="max", system_prompt=prompt)
        return RunResult(ctx.run_id, "completed", metrics, artifacts, notes=notes)


def _as_task(row: Row, at: int) -> HarborTask:
    """A row as a task: prompt examples are judged by their expected answer."""
    if detect_format(row) == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return task
    [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
    if example.expected is None:
        raise DataError(f"row {at + 1} has no expected answer, so no prompt can be judged by it. Add 'expected'.")
    question = "\n".join(str(value) for value in example.inputs.values())
    return HarborTask(f"row-{at}", question, InProcessVerifier("exact_match", example.expected), example.metadata)


@dataclass(slots=True)
class _Search:
    """What `gepa` asks: how prompts do, and what to reflect on."""

    cfg: GepaPrompt.Config
    services: RunServices
    calls: PromptCalls
    used: int = 0
    proposals: int = 0
    failure: Exception | None = None
    """What went wrong with the reflecting model: the package would continue as if it had nothing to propose."""
    propose_new_texts: None = None
    """The package asks for a way to propose of one's own; it has its own."""
    _client: ChatClient | None = field(default=None, init=False)
    _policy: SamplerPolicy | None = field(default=None, init=False)
    _reflect: ChatClient | None = field(default=None, init=False)

    def run(self, train: list[HarborTask], val: list[HarborTask], seed: int) -> dict[str, Any]:
        package: Any = import_module("gepa")
        stoppers: Any = import_module("gepa.utils.stop_condition")
        self._open()
        batch = min(self.cfg.minibatch, len(train))
        longest_step = 2 * batch + len(val)  # a step is never cut short, so one that may not fit is not begun
        found: Any = package.optimize(
            seed_candidate={_COMPONENT: self.cfg.seed_prompt},
            trainset=train,
            valset=val,
            adapter=self,
            reflection_lm=self._ask_reflection,
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
        scores = [float(score) for score in found.val_aggregate_scores]
        best = max(range(len(scores)), key=lambda at: scores[at])
        return {
            "best": found.candidates[best][_COMPONENT],
            "best_score": scores[best],
            "seed_score": scores[0],
            "metric_calls": self.used,
            "proposals": self.proposals,
            "candidates": [
                {"prompt": one[_COMPONENT], "score": score, "parents": list(parents)}
                for one, score, parents in zip(found.candidates, scores, found.parents, strict=True)
            ],
            "pareto": {
                str(row): sorted(owners) for row, owners in dict(found.per_val_instance_best_candidates).items()
            },
        }

    def _is_over(self, longest_step: int, state: Any) -> bool:
        """Whether no step is to be begun: one has failed, or the next might not fit."""
        return self.failure is not None or self.used + longest_step > self.cfg.budget

    def evaluate(self, batch: list[HarborTask], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Score a prompt on some rows."""
        # Counted also where the answers are known from before: a search that was killed ends where it would have ended.
        self.used += len(batch)
        prompt = candidate[_COMPONENT]
        found = run_blocking(lambda: self._answer_all(prompt, batch))
        outputs, scores = [one["answer"] for one in found], [one["score"] for one in found]
        traces = [{**one, "task": task} for task, one in zip(batch, found, strict=True)] if capture_traces else None
        adapter: Any = import_module("gepa.core.adapter")
        return adapter.EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the reflecting model reads about each row."""
        stated: list[dict[str, Any]] = []
        for one in eval_batch.trajectories:
            expected = getattr(one["task"].verifier, "expected", None)
            judged = f"It scored {one['score']:g}." + ("" if expected is None else f" Expected: {expected}")
            stated.append({"Inputs": one["task"].instruction, "Generated Outputs": one["answer"], "Feedback": judged})
        return dict.fromkeys(components_to_update, stated)

    def _open(self) -> None:
        cfg, services = self.cfg, self.services
        self._reflect = _open_client(cfg.reflection, "algorithm.params.reflection")
        if cfg.task is not None:
            self._client = _open_client(cfg.task, "algorithm.params.task")
            return
        if services.client is None or services.renderer is None:
            raise TrainingError("this backend has no model to ask. Name one with algorithm.params.task.")
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
        # A search that was killed finds its answers again instead of paying for them twice.
        if (known := self.calls.find(key)) is not None:
            return known
        messages = [{"role": "system", "content": prompt}, *opening(task)]
        if self._policy is not None:
            turn = await self._policy.act(messages)
        else:
            assert self._client is not None
            [made] = await self._client.complete(
                messages, max_tokens=self.cfg.max_tokens, temperature=self.cfg.temperature
            )
            turn = Turn(made.message)
        rollout = Rollout(task.task_id, 0, "ok", None, [turn], [*messages, turn.message])
        judged = await self.services.verify(task, rollout, NoEnvironment())
        return self.calls.add(key, task=task.task_id, prompt=prompt, answer=rollout.completion, score=judged.reward)

    def _ask_reflection(self, prompt: Any) -> str:
        """What the reflecting model writes; the same question is asked once."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        self.proposals += 1
        # With its number: asked the same thing again, the model is meant to propose something else.
        key = _key("reflection", messages, str(self.proposals))
        if (known := self.calls.find(key)) is None:
            client = self._reflect
            assert client is not None
            try:
                [made] = run_blocking(lambda: client.complete(messages, max_tokens=_PROMPT_TOKENS, temperature=1.0))
            except Exception as error:
                self.failure = error
                raise
            known = self.calls.add(key, question=messages, answer=made.text)
        return str(known["answer"])


class _Quiet:
    """The package prints what the record has."""

    def log(self, message: str) -> None:
        pass


def _open_client(spec: InferenceSpec, path: str) -> ChatClient:
    what = f"inference client '{spec.kind}'"
    return as_chat_client(build_extension(get_inference(spec.kind), spec.arguments, what=what, path=f"{path}.params"))


def _key(kind: str, *parts: Any) -> str:
    said = json.dumps([kind, *parts], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
