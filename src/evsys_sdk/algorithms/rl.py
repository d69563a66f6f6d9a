"""Reinforcement learning: several attempts at each task, and a push towards those that did better than the others.

Each step rolls out the current policy in groups, one group per task. An attempt's advantage is how far its reward lies
above its group; a group whose rewards are all the same says nothing and is dropped, and counted. With `max_refills`,
groups of other tasks take its place.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ..backends.checks import check_recipe
from ..backends.datum import Datum
from ..config.fields import NOT_SEARCHED, searched
from ..rollouts.datums import datum_metrics, rollout_datums
from ..rollouts.rollout import Rollout
from ..training.batch import TrainingBatch
from .on_policy import RolloutAlgorithm, RolloutConfig, rollout_metrics

if TYPE_CHECKING:
    from ..backends.client import SamplingClient
    from ..training.loop import LoopSettings
    from .base import PlannedWork


# `Mastery` notices when there is nothing left to learn: every attempt earns the most that any attempt has earned.
#
# Batches then hold no differences to learn from. Without this a run that has succeeded would end like one that never
# got a reward.
@dataclass(slots=True)
class Mastery:
    """The range of rewards seen, and for how many batches in a row all of them were at its upper end."""

    patience: int = 3
    lowest: float = math.inf
    highest: float = -math.inf
    in_a_row: int = 0

    def note_rewards(self, rewards: Sequence[float]) -> bool:
        """Take note of a batch; says whether enough of them in a row were perfect."""
        if rewards:
            self.lowest, self.highest = min(self.lowest, *rewards), max(self.highest, *rewards)
            # Where nothing but one reward was ever seen, nobody knows whether it is a good one.
            perfect = min(rewards) == self.highest > self.lowest
            self.in_a_row = self.in_a_row + 1 if perfect else 0
        return self.in_a_row >= self.patience

    def state(self) -> dict[str, float]:
        """What `restore` needs after a resume, as finite numbers."""
        return {key: value for key, value in asdict(self).items() if math.isfinite(value)}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.lowest, self.highest = state.get("lowest", math.inf), state.get("highest", -math.inf)
        self.in_a_row = int(state.get("in_a_row", 0))


type Advantage = Literal["mean", "std", "rloo"]
type Normalisation = Literal["token", "sequence", "fixed"]
_SPEND = frozenset({"tokens_sampled", "cost_usd"})
"""Metrics that say what the rollouts of a step took."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What one iteration of rollouts gives to learn from."""

    data: list[Datum]
    metrics: dict[str, float]
    rollouts: tuple[Rollout, ...] = ()


class RL(RolloutAlgorithm):
    """Policy gradient on groups of rollouts, rewarded by verifiers."""

    name: ClassVar[str] = "rl"

    class Config(RolloutConfig):
        """Parameters of `rl`."""

        group_size: int = Field(default=8, ge=2, json_schema_extra=searched(scale="log"))
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
        kl_coefficient: float = Field(default=0.0, ge=0, json_schema_extra=searched(scale="log"))
        """Penalty on moving away from the starting policy, taken from the advantages."""
        overlong_penalty: float = Field(default=0.0, ge=0)
        """Taken from the reward of an attempt that was cut off."""
        max_refills: int = Field(default=0, ge=0, json_schema_extra=NOT_SEARCHED)
        """Groups of other tasks that a step may sample in place of groups whose rewards are all the same (dynamic
        sampling); they cost as much as any other."""
        max_staleness: int = Field(default=0, ge=0, json_schema_extra=NOT_SEARCHED)
        """Iterations that rollouts may lag behind the policy; above 0 sampling overlaps training."""

        @model_validator(mode="after")
        def _clips_where_it_can(self) -> Self:
            if self.loss_fn == "importance_sampling" and (self.clip_low, self.clip_high) != (None, None):
                raise ValueError(
                    "importance_sampling does not clip. Remove clip_low and clip_high, or set loss_fn to ppo, cispo or "
                    "gspo."
                )
            return self

    cfg: Config

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._pending: deque[asyncio.Task[list[list[Rollout]]]] = deque()

    async def setup(self) -> None:
        check_recipe(
            self.client.capabilities,
            path="algorithm.kind",
            sums="how much each advantage counts, above all a negative one",
        )
        for name, use in (("max_staleness", "rollouts of an earlier policy"), ("kl_coefficient", "the reference")):
            if getattr(self.cfg, name):
                check_recipe(self.client.capabilities, path=f"algorithm.params.{name}", snapshots=use)
        await super().setup()
        self._base = await self.client.sampler() if self.cfg.kl_coefficient else None
        self._next_iteration = 0
        self._experience: tuple[int, Experience] | None = None
        self._mastery = Mastery()

    def close(self) -> None:
        for task in self._pending:
            if not task.cancel() and not task.cancelled():
                task.exception()  # it is over and has failed like the one before it, which was heard
        super().close()

    def settings(self) -> LoopSettings:
        # Rollouts belong to an iteration: a checkpoint between two updates on them could not be taken up again.
        settings, updates = super().settings(), self.cfg.updates_per_batch
        total = settings.total_steps
        fractions = (_up_to_multiple(max(round(part * total), 1), updates) for part in settings.save_at_fractions)
        return replace(
            settings,
            save_every=settings.save_every and _up_to_multiple(settings.save_every, updates),
            eval_every=settings.eval_every and _up_to_multiple(settings.eval_every, updates),
            # The last step is saved in any case.
            save_at_fractions=tuple(steps / total for steps in fractions if steps < total),
        )

    @property
    def answers_per_row(self) -> int:
        return self.cfg.group_size

    @property
    def updates_per_batch(self) -> int:
        return self.cfg.updates_per_batch

    def steps_for(self, n_examples: int) -> int:
        return super().steps_for(n_examples) * (1 if self.cfg.max_steps else self.cfg.updates_per_batch)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        iteration = step_idx // self.cfg.updates_per_batch
        if self._experience is None or self._experience[0] != iteration:
            groups = await self._rollouts(iteration)
            # Kept for the other updates on the same rollouts, which come as further steps.
            self._experience = (iteration, await self._learnable(groups))
            if self._mastery.note_rewards([r.reward for group in groups for r in group if r.reward is not None]):
                self.services.control.stop("every attempt earns the highest reward; there is nothing left to learn")
        experience = self._experience[1]
        metrics, rollouts = dict(experience.metrics), experience.rollouts
        if step_idx % self.cfg.updates_per_batch:  # these rollouts were paid for, and recorded, with an earlier step
            metrics, rollouts = metrics | dict.fromkeys(_SPEND & metrics.keys(), 0.0), ()
        return TrainingBatch(
            experience.data,
            self.cfg.loss_fn,
            self._loss_config(),
            metrics=metrics,
            rollouts=rollouts,
            empty_because="" if experience.data else explain_constant(experience.rollouts),
        )

    def state(self) -> dict[str, Any]:
        return {"mastery": self._mastery.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._mastery.restore(state.get("mastery", {}))

    async def _rollouts(self, iteration: int) -> list[list[Rollout]]:
        """This iteration's rollouts, with those of the next ones under way as far as staleness allows."""
        last = (self.total_steps() - 1) // self.cfg.updates_per_batch
        # A run that resumes does not begin with iteration 0.
        self._next_iteration = max(self._next_iteration, iteration)
        # As far ahead as rollouts may be stale; with 0 that is this iteration alone.
        while self._next_iteration <= min(iteration + self.cfg.max_staleness, last):
            self._pending.append(asyncio.create_task(self._sample(self._next_iteration)))
            self._next_iteration += 1
        return await self._pending.popleft()

    async def plan(self, n_rows: int) -> PlannedWork:
        work = await super().plan(n_rows)
        iterations = -(-work.steps // self.cfg.updates_per_batch)
        refills = iterations * min(self.cfg.max_refills, max(n_rows - self.cfg.batch_size, 0)) * self.cfg.group_size
        return replace(work, answers_sampled=work.answers_sampled + refills)

    async def _sample(self, iteration: int) -> list[list[Rollout]]:
        sampler = await self.client.sampler()
        size, chosen = self.cfg.group_size, list(self.order().indices(iteration))
        roll_out = partial(self.roll_out_with, sampler, n_samples=size, iteration=iteration)
        groups = await roll_out([self.tasks[index] for index in chosen])
        others = [index for index in range(len(self.tasks)) if index not in set(chosen)]
        # By the iteration and not by what was sampled before: a resumed run refills with the same tasks.
        Random(f"{self.seed}:{iteration}").shuffle(others)
        others = others[: self.cfg.max_refills]
        while others and (missing := len(chosen) - sum(map(self._says_something, groups))):
            groups += await roll_out([self.tasks[index] for index in others[:missing]])
            others = others[missing:]
        return groups

    def _says_something(self, group: Sequence[Rollout]) -> bool:
        return any(group_advantages([self._reward(one) for one in group if one.reward is not None], "mean"))

    async def _learnable(self, groups: Sequence[Sequence[Rollout]]) -> Experience:
        """Advantages and datums of the groups that say something."""
        learnable: list[list[Datum]] = []
        metrics: dict[str, float] = {}
        constant = 0
        for group in groups:
            scored = [rollout for rollout in group if rollout.reward is not None]
            advantages = group_advantages([self._reward(rollout) for rollout in scored], self.cfg.advantage)
            if not any(advantages):
                constant += 1
                continue
            for rollout, advantage in zip(scored, advantages, strict=True):
                learnable.append(rollout_datums(rollout, advantage))
        if self.cfg.max_refills:
            metrics |= {"groups/refilled": float(max(len(groups) - self.cfg.batch_size, 0))}
        metrics |= rollout_metrics(groups) | {"groups/constant": constant / max(len(groups), 1)} | _spent_on(groups)
        if learnable:
            metrics |= datum_metrics(learnable)
        if self._base is not None and learnable:
            learnable, metrics["policy/kl_to_start"] = await self._with_kl_penalty(self._base, learnable)
        data = normalise_advantages(learnable, self.cfg.normalise, self.cfg.sampling.max_tokens)
        return Experience(data, metrics, tuple(rollout for group in groups for rollout in group))

    def _reward(self, rollout: Rollout) -> float:
        assert rollout.reward is not None
        return rollout.reward - (self.cfg.overlong_penalty if rollout.status == "truncated" else 0.0)

    async def _with_kl_penalty(
        self, base: SamplingClient, rollouts: Sequence[Sequence[Datum]]
    ) -> tuple[list[list[Datum]], float]:
        """Advantages less what each token costs in divergence from the starting policy, and the mean of that."""
        # Whole sequences: a datum's tokens are all but the last one. All are asked before the first is awaited.
        operations = [
            [base.logprobs([*datum.tokens.tolist(), int(datum.target_tokens[-1])]) for datum in data]
            for data in rollouts
        ]
        total = tokens = 0.0
        penalised: list[list[Datum]] = []
        for data, asked in zip(rollouts, operations, strict=True):
            penalised.append([])
            for datum, operation in zip(data, asked, strict=True):
                assert datum.logprobs is not None
                assert datum.advantages is not None
                # The first token of a sequence has no log-probability: what follows is aligned with the targets.
                divergence = (datum.logprobs - (await operation)[1:]) * datum.weights
                total, tokens = total + float(divergence.sum()), tokens + float(datum.weights.sum())
                advantages = datum.advantages - np.float32(self.cfg.kl_coefficient) * divergence
                penalised[-1].append(replace(datum, advantages=advantages.astype(np.float32)))
        return penalised, total / max(tokens, 1.0)

    def _loss_config(self) -> Mapping[str, Any] | None:
        if self.cfg.loss_fn == "importance_sampling":
            return None
        thresholds = {"clip_low_threshold": self.cfg.clip_low, "clip_high_threshold": self.cfg.clip_high}
        return {key: value for key, value in thresholds.items() if value is not None}


def explain_constant(rollouts: Sequence[Rollout]) -> str:
    """Why groups whose rewards do not differ teach nothing, and what to look at."""
    rewards = sorted({rollout.reward for rollout in rollouts if rollout.reward is not None})
    found = f"are all {rewards[0]:g}" if len(rewards) == 1 else "do not differ within any group"
    return (
        f"The rewards {found}, so that no attempt is better than another. Look at them with `evsys rollouts`; make the "
        "tasks easier or the verifier finer, or raise group_size."
    )


def group_advantages(rewards: Sequence[float], kind: Advantage) -> list[float]:
    """How much better each attempt did than its group; all zero when they did the same, or when there is only one."""
    values = np.asarray(rewards, dtype=np.float64)
    # Exactly zero and not a rounding error away from it, which a standard deviation would blow up.
    if len(values) < 2 or np.ptp(values) == 0:
        return [0.0] * len(values)
    centred = values - values.mean()
    if kind == "std":
        centred /= values.std()
    elif kind == "rloo":  # the mean of the others: a - (S - a) / (n - 1) = (a - mean) * n / (n - 1)
        centred *= len(values) / (len(values) - 1)
    return [float(advantage) for advantage in centred]


def normalise_advantages(rollouts: Sequence[Sequence[Datum]], kind: Normalisation, max_tokens: int) -> list[Datum]:
    """Advantages scaled so that the backend's sum over tokens becomes the mean that was asked for."""
    lengths = [sum(int((datum.weights > 0).sum()) for datum in data) for data in rollouts]
    sizes = {
        # What each rollout's sum is divided by: all tokens, its own tokens in its share of the batch, or a full length.
        "token": [sum(lengths)] * len(lengths),
        "sequence": [len(lengths) * length for length in lengths],
        "fixed": [len(lengths) * max_tokens] * len(lengths),
    }[kind]
    return [_scale(datum, 1 / size) for data, size in zip(rollouts, sizes, strict=True) for datum in data]


def _spent_on(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """What the rollouts took: tokens of the policy, and dollars that a judge reports without having been metered."""
    rollouts = [rollout for group in groups for rollout in group]
    costs = [rollout.info.get("cost_usd") for rollout in rollouts if "usage" not in rollout.info]
    dollars = sum(float(cost) for cost in costs if isinstance(cost, int | float))
    sampled = sum(turn.output_tokens for rollout in rollouts for turn in rollout.turns)
    return {"tokens_sampled": float(sampled)} | ({"cost_usd": dollars} if dollars else {})


def _scale(datum: Datum, factor: float) -> Datum:
    assert datum.advantages is not None
    return replace(datum, advantages=datum.advantages * np.float32(factor))


def _up_to_multiple(steps: int, of: int) -> int:
    return -(-steps // of) * of


class MockRL(RL):
    """Policy gradient that always runs on the mock backend."""

    name: ClassVar[str] = "mock_rl"
    pinned_backend: ClassVar[str | None] = "mock"
