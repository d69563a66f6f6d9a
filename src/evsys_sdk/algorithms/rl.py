"""Reinforcement learning: several attempts at each task, and a push towards those that did better than the others.

Each step rolls out the current policy in groups, one group per task. An attempt's advantage is how far its reward lies
above its group; a group whose rewards are all the same says nothing and is dropped, and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..backends.datum import Datum
from ..rollouts.datums import rollout_datums
from ..rollouts.rollout import Rollout
from ..training.batch import TrainingBatch
from .on_policy import OnPolicyAlgorithm, OnPolicyConfig, rollout_metrics

if TYPE_CHECKING:
    from ..training.loop import LoopSettings

type Advantage = Literal["mean", "std", "rloo"]
type Normalisation = Literal["token", "sequence", "fixed"]


@dataclass(frozen=True, slots=True)
class Experience:
    """What one iteration of rollouts gives to learn from."""

    data: list[Datum]
    metrics: dict[str, float]


class RL(OnPolicyAlgorithm):
    """Policy gradient on groups of rollouts, rewarded by verifiers."""

    name: ClassVar[str] = "rl"

    class Config(OnPolicyConfig):
        """Parameters of `rl`."""

        group_size: int = Field(default=8, ge=2)
        """Attempts per task; below 4 most groups say nothing."""
        advantage: Advantage = "mean"
        """What a reward is measured against: the group's mean, the same in standard deviations, or the others' mean."""
        loss_fn: Literal["importance_sampling", "ppo", "cispo", "gspo"] = "importance_sampling"
        """How the policy gradient is limited when the policy has moved since it sampled."""
        clip_low: float | None = Field(default=None, ge=0)
        """Lower clip threshold of the ratio, for losses that clip; by default the loss's own."""
        clip_high: float | None = Field(default=None, gt=0)
        """Upper clip threshold of the ratio; above 1.2 it leaves rare tokens room to rise."""
        normalise: Normalisation = "token"
        """Whether each token, each rollout, or each rollout at full length counts the same."""
        updates_per_batch: int = Field(default=1, ge=1)
        """Optimiser steps on the same rollouts; use a clipping loss above 1."""
        kl_coefficient: float = Field(default=0.0, ge=0)
        """Penalty on moving away from the starting policy, taken from the advantages."""
        overlong_penalty: float = Field(default=0.0, ge=0)
        """Taken from the reward of an attempt that was cut off."""
        max_staleness: int = Field(default=0, ge=0)
        """Iterations that rollouts may lag behind the policy; above 0 sampling overlaps training."""

    cfg: Config

    async def setup(self) -> None:
        await super().setup()
        self._base = await self.client.sampler() if self.cfg.kl_coefficient else None
        self._pending: deque[asyncio.Task[list[list[Rollout]]]] = deque()
        self._next_iteration = 0
        self._experience: tuple[int, Experience] | None = None

    def close(self) -> None:
        for task in getattr(self, "_pending", ()):
            task.cancel()
        super().close()

    def settings(self) -> LoopSettings:
        # Rollouts belong to an iteration: a checkpoint between two updates on them could not be taken up again.
        settings = super().settings()
        return replace(
            settings,
            save_every=_up_to_multiple(settings.save_every, self.cfg.updates_per_batch),
            eval_every=_up_to_multiple(settings.eval_every, self.cfg.updates_per_batch),
        )

    def total_steps(self) -> int:
        return super().total_steps() * (1 if self.cfg.max_steps else self.cfg.updates_per_batch)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        iteration = step_idx // self.cfg.updates_per_batch
        if self._experience is None or self._experience[0] != iteration:
            self._experience = (iteration, await self._learnable(await self._rollouts(iteration)))
        experience = self._experience[1]
        return TrainingBatch(experience.data, self.cfg.loss_fn, self._loss_config(), metrics=dict(experience.metrics))

    async def _rollouts(self, iteration: int) -> list[list[Rollout]]:
        """This iteration's rollouts, with those of the next ones under way as far as staleness allows."""
        self._next_iteration = max(self._next_iteration, iteration)
        while self._next_iteration <= iteration + self.cfg.max_staleness:
            self._pending.append(asyncio.create_task(self._sample(self._next_iteration)))
            self._next_iteration += 1
        return await self._pending.popleft()

    async def _sample(self, iteration: int) -> list[list[Rollout]]:
        tasks = [self.tasks[index] for index in self.order().indices(iteration)]
        return await self.roll_out(tasks, self.cfg.group_size, iteration=iteration)

    async def _learnable(self, groups: Sequence[Sequence[Rollout]]) -> Experience:
        """Advantages and datums of the groups that say something."""
        data: list[Datum] = []
        constant = 0
        for group in groups:
            scored = [rollout for rollout in group if rollout.reward is not None]
            advantages = group_advantages([self._reward(rollout) for rollout in scored], self.cfg.advantage)
            if not any(advantages):
                constant += 1
                continue
            for rollout, advantage in zip(scored, advantages, strict=True):
                data += rollout_datums(rollout, advantage)
        metrics = rollout_metrics(groups) | {"groups/constant": constant / max(len(groups), 1)}
        if self._base is not None and data:
            data, metrics["policy/kl_to_start"] = await self._with_kl_penalty(data)
        return Experience(normalised(data, self.cfg.normalise, self.cfg.sampling.max_tokens), metrics)

    def _reward(self, rollout: Rollout) -> float:
        assert rollout.reward is not None
        return rollout.reward - (self.cfg.overlong_penalty if rollout.status == "truncated" else 0.0)

    async def _with_kl_penalty(self, data: Sequence[Datum]) -> tuple[list[Datum], float]:
        """Advantages less what each token costs in divergence from the starting policy."""
        assert self._base is not None
        operations = [self._base.logprobs([*datum.tokens.tolist(), int(datum.target_tokens[-1])]) for datum in data]
        penalised: list[Datum] = []
        total = tokens = 0.0
        for datum, operation in zip(data, operations, strict=True):
            assert datum.logprobs is not None
            assert datum.advantages is not None
            divergence = (datum.logprobs - (await operation)[1:]) * datum.weights
            total, tokens = total + float(divergence.sum()), tokens + float(datum.weights.sum())
            advantages = datum.advantages - np.float32(self.cfg.kl_coefficient) * divergence
            penalised.append(replace(datum, advantages=advantages.astype(np.float32)))
        return penalised, total / tokens

    def _loss_config(self) -> Mapping[str, Any] | None:
        if self.cfg.loss_fn == "importance_sampling":
            return None
        thresholds = {"clip_low_threshold": self.cfg.clip_low, "clip_high_threshold": self.cfg.clip_high}
        return {key: value for key, value in thresholds.items() if value is not None}


def group_advantages(rewards: Sequence[float], kind: Advantage) -> list[float]:
    """How much better each attempt did than its group; all zero when they did the same, or when there is only one."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        return [0.0] * len(values)
    centred = values - values.mean()
    if kind == "std":
        centred /= values.std()
    elif kind == "rloo":  # the mean of the others: a - (S - a) / (n - 1) = (a - mean) * n / (n - 1)
        centred *= len(values) / (len(values) - 1)
    return [float(advantage) for advantage in centred]


def normalised(data: Sequence[Datum], kind: Normalisation, max_tokens: int) -> list[Datum]:
    """Advantages scaled so that the backend's sum over tokens becomes the mean that was asked for."""
    lengths = [max(int((datum.weights > 0).sum()), 1) for datum in data]
    total = sum(lengths)

    def scaled(datum: Datum, length: int) -> Datum:
        assert datum.advantages is not None
        size = {"token": total, "sequence": len(data) * length, "fixed": len(data) * max_tokens}[kind]
        return replace(datum, advantages=datum.advantages / np.float32(size))

    return [scaled(datum, length) for datum, length in zip(data, lengths, strict=True)]


def _up_to_multiple(steps: int | None, of: int) -> int | None:
    return None if steps is None else -(-steps // of) * of
