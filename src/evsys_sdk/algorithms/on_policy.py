"""Base of on-policy recipes: a new sampler per iteration, rollouts of the policy, and their metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from ..backends.client import SamplingClient, SamplingParams
from ..backends.future import Operation
from ..config.base import Strict
from ..config.fields import NOT_SEARCHED, searched
from ..data import HarborTask, TargetFormat, detect_format, parse_rows
from ..inference.renderer import row_messages
from ..log import get_logger
from ..protocols import AlgorithmTraits, RolloutTraits, Row
from ..rollouts.engine import EngineLimits, InlineEngine, RolloutEngine, RolloutRequest
from ..rollouts.harness import AgentSpec, EnvironmentSpec, Harness, build_harness, import_agent
from ..rollouts.policy import ContextFullError, SamplerPolicy
from ..rollouts.rollout import AllFailedError, Message, Rollout, Turn, opening
from ..training.frozen_model import FrozenModel
from ..training.saturation import sampled_entropy
from .base import BaseAlgorithm, PlannedWork, TrainingConfig


class SamplingConfig(Strict):
    """Sampling options of the policy during training."""

    max_tokens: int = Field(default=256, ge=1, json_schema_extra=searched(scale="log"))
    """Maximum answer length per turn."""
    temperature: float = Field(default=1.0, gt=0, json_schema_extra=NOT_SEARCHED)
    """1 samples from the policy itself, as the losses assume."""


class OnPolicyConfig(TrainingConfig):
    """Hyperparameters of recipes that learn from the policy's samples."""

    batch_size: int = Field(default=8, ge=1, json_schema_extra=searched(scale="log"))
    """Tasks per step."""
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    """Sampling options of the policy."""


class RolloutConfig(OnPolicyConfig):
    """Hyperparameters of recipes with rollouts: an agent works on a task."""

    agent: AgentSpec | None = None
    """Agent that drives the policy; by default a single question and answer."""
    agent_import_path: str | None = None
    """A custom agent as `package.module:Class`, instead of `agent`."""
    environment: EnvironmentSpec | None = None
    """Environment of the agent's commands; by default none."""
    engine: Literal["inline", "harbor"] | None = Field(default=None, json_schema_extra=NOT_SEARCHED)
    """Engine of the rollouts: `inline` in this process, or Harbor's trials; by default `harbor` for its agents and
    environments, else `inline`.
    """
    concurrency: int = Field(default=32, ge=1, json_schema_extra=NOT_SEARCHED)
    """Maximum number of concurrent rollouts."""
    timeout_s: float = Field(default=600.0, gt=0, json_schema_extra=NOT_SEARCHED)
    """Time limit of one rollout."""

    @model_validator(mode="after")
    def _one_harness(self) -> Self:
        if self.agent is not None and self.agent_import_path is not None:
            raise ValueError("agent and agent_import_path are both set. Keep one of them.")
        return self


class OnPolicyAlgorithm(BaseAlgorithm):
    """Base of recipes that learn from samples of the current policy."""

    Config = OnPolicyConfig
    cfg: Any  # recipes declare a subclass of OnPolicyConfig
    builds_ahead = False

    @property
    def answers_per_row(self) -> int:
        """Answers per prompt of a batch."""
        return 1

    @property
    def updates_per_batch(self) -> int:
        """Optimiser steps on the same answers."""
        return 1

    async def plan(self, n_rows: int) -> PlannedWork:
        """The maximum work: every answer counts with its maximum length."""
        prompts = fmean([len(self.renderer.prompt(prompt_of(row))) for row in self.rows] or [0])
        steps, longest = self.steps_for(max(n_rows, 1)), self.cfg.sampling.max_tokens
        per_step = min(self.cfg.batch_size, max(n_rows, 1)) * self.answers_per_row
        return PlannedWork(
            steps,
            tokens_trained=steps * per_step * prompts,
            step_lengths=(round(prompts) + longest,) * per_step,
            # Rounded up: the last answers may be used in fewer steps.
            answers_sampled=-(-steps // self.updates_per_batch) * per_step,
            answers_trained=steps * per_step,
            answer_tokens=longest,
        )

    def frozen(self, sampler: SamplingClient) -> FrozenModel:
        """A sampler as a FrozenModel, for scoring."""
        opened = Operation[SamplingClient].done(sampler)
        return FrozenModel(opened, self.renderer, self.client.tokenizer, self.client.capabilities)

    def policy(self, sampler: SamplingClient) -> SamplerPolicy:
        """A sampler as a policy for agents."""
        params = SamplingParams(self.cfg.sampling.max_tokens, self.cfg.sampling.temperature)
        return SamplerPolicy(sampler, self.renderer, params, self.client.capabilities.context_length, self.seed)

    async def answers(self, conversations: Sequence[Sequence[Message]], step: int) -> list[Turn | None]:
        """One answer of the current policy per conversation; None if the conversation fills the context."""
        policy = self.policy(await self.client.sampler())

        async def answer(index: int, conversation: Sequence[Message]) -> Turn | None:
            try:
                return await policy.with_seed(step, index).act(conversation)
            except ContextFullError:
                return None

        return await asyncio.gather(*(answer(index, conversation) for index, conversation in enumerate(conversations)))


class RolloutAlgorithm(OnPolicyAlgorithm):
    """Base of recipes with rollouts of the current policy on tasks."""

    Config = RolloutConfig
    selection_metric: ClassVar[str] = "reward/mean"
    selection_mode: ClassVar[Literal["min", "max"]] = "max"
    _engine: RolloutEngine | None = None

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Refuse an agent that cannot be imported; called by deep validation."""
        if params.agent_import_path is not None:
            import_agent(params.agent_import_path)

    def harness(self) -> Harness:
        """The agent and environment of training and evaluation."""
        return build_harness(self.cfg.agent, self.cfg.environment, agent_import_path=self.cfg.agent_import_path)

    def traits(self) -> AlgorithmTraits:
        cfg = self.cfg
        rollouts = RolloutTraits(
            harness=self.harness,
            agent=cfg.agent,
            agent_import_path=cfg.agent_import_path,
            environment=cfg.environment,
            engine=cfg.engine,
            max_tokens=cfg.sampling.max_tokens,
        )
        return replace(super().traits(), rollouts=rollouts)

    async def plan(self, n_rows: int) -> PlannedWork:
        work = await super().plan(n_rows)
        has_agent = self.cfg.agent is not None or self.cfg.agent_import_path is not None
        note = "an agent may take several turns per task; one is counted" if has_agent else ""
        return replace(work, note=note)

    async def setup(self) -> None:
        self.tasks: list[HarborTask] = list(parse_rows(self.rows, TargetFormat.HARBOR_TASK))
        self._harness = self.harness()
        self._engine = self._open_engine()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def n_examples(self) -> int:
        return len(self.tasks)

    async def roll_out(self, tasks: Sequence[HarborTask], n_samples: int, *, iteration: int) -> list[list[Rollout]]:
        """Rollouts of the current policy on some tasks, grouped by task."""
        return await self.roll_out_with(await self.client.sampler(), tasks, n_samples, iteration=iteration)

    async def roll_out_with(
        self, sampler: SamplingClient, tasks: Sequence[HarborTask], n_samples: int, *, iteration: int
    ) -> list[list[Rollout]]:
        """`roll_out` with an earlier sampler."""
        policy = self.policy(sampler)
        requests = [
            RolloutRequest(
                task=task,
                sample=sample,
                # The seed must not depend on the order in which rollouts end.
                policy=policy.with_seed(iteration, task.task_id, sample),
                harness=self._harness,
                verify=self.services.verify,
            )
            for task in tasks
            for sample in range(n_samples)
        ]
        assert self._engine is not None
        rollouts = await self._engine.submit(requests)
        _report_failures(rollouts)
        return [rollouts[start : start + n_samples] for start in range(0, len(rollouts), n_samples)]

    def _open_engine(self) -> RolloutEngine:
        limits = EngineLimits(concurrency=self.cfg.concurrency, timeout_s=self.cfg.timeout_s)
        if (self.cfg.engine or self._harness.engine) == "inline":
            self._harness.refuse_inline()
            return InlineEngine(limits)
        from ..rollouts.harbor.engine import HarborEngine

        return HarborEngine(limits)


def row_name(rows: Sequence[Row], index: int) -> str:
    """A row's name in the record: its task id, else its number."""
    return str(rows[index].get("task_id") or f"row{index + 1}")


def _report_failures(rollouts: Sequence[Rollout]) -> None:
    """Warn about failed rollouts, which are excluded; raise AllFailedError if all failed."""
    failures = [rollout for rollout in rollouts if rollout.status == "infra"]
    if failures:
        first = failures[0]
        if len(failures) == len(rollouts):
            at = f" (at {first.error_at})" if first.error_at else ""
            raise AllFailedError(
                f"all {len(rollouts)} rollouts of a step failed, so there is nothing to learn from. First error, "
                f"task '{first.task_id}': {first.error}{at}",
                rollouts,
            )
        get_logger(__name__).warning(
            "%d of %d rollouts failed and are excluded; first error, task %s: %s",
            len(failures), len(rollouts), first.task_id, first.error,
        )  # fmt: skip


_NOT_A_METRIC = ("usage", "cost_usd")
"""Keys of `info` for cost accounting."""
_MOST_INFO = 50
"""Maximum number of metrics from `info`."""


def rollout_metrics(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """Statistics of a batch of rollouts; failures are counted, never averaged as zeros."""
    rollouts = [rollout for group in groups for rollout in group]
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    metrics = {
        "rollouts/count": float(len(rollouts)),
        "rollouts/infra": float(len(rollouts) - len(scored)),
        "rollouts/truncated": float(sum(rollout.status == "truncated" for rollout in rollouts)),
        "rollouts/turns": sum(len(rollout.turns) for rollout in rollouts) / max(len(rollouts), 1),
        "rollouts/tokens": sum(turn.output_tokens for r in rollouts for turn in r.turns) / max(len(rollouts), 1),
        "rollouts/off_template": sum(not turn.as_template for r in rollouts for turn in r.turns)
        / max(sum(len(rollout.turns) for rollout in rollouts), 1),
        "time/rollouts_s": sum(rollout.seconds for rollout in rollouts),
    }
    entropy = sampled_entropy(rollouts)
    metrics |= {} if entropy is None else {"policy/entropy": entropy}
    return metrics | ({"reward/mean": sum(rewards) / len(rewards)} if rewards else {}) | info_metrics(rollouts)


def info_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means of numbers in `info`, each over the rollouts that have it.

    `components` and `rewards` (parts of a reward) become `reward/components/...`; others become `info/...`.
    """
    numbers: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.info.items():
            parts: Mapping[Any, Any] = cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {None: value}
            family = "reward/components/" if name in ("components", "rewards") else f"info/{name}/"
            for key, part in parts.items():
                if isinstance(part, int | float) and math.isfinite(part) and name not in _NOT_A_METRIC:
                    numbers.setdefault(f"info/{name}" if key is None else f"{family}{key}", []).append(float(part))
    return {name: fmean(values) for name, values in sorted(numbers.items())[:_MOST_INFO]}


def conversation_of(row: Row) -> list[Message]:
    """The text of a row: a task's opening, an example's inputs, or a whole conversation."""
    shape = detect_format(row)
    if shape == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return opening(task)
    if shape == "prompt_dataset":
        [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
        return [{"role": "user", "content": "\n".join(str(value) for value in example.inputs.values())}]
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    return [dict(message) for message in row_messages(chat)]


def prompt_of(row: Row) -> list[Message]:
    """What the model is shown: the conversation up to its last answer."""
    messages = conversation_of(row)
    return messages[:-1] if len(messages) > 1 and messages[-1]["role"] == "assistant" else messages
