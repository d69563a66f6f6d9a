"""Reinforcement learning: policy gradient on groups of rollouts per task.

Each step rolls out the current policy in groups, one group per task. A rollout's advantage is its reward relative to
its group. A group with equal rewards has no gradient; it is dropped and counted. `max_refills` replaces it by groups of
other tasks.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ..backends.checks import check_recipe
from ..backends.datum import Datum
from ..config.fields import NOT_SEARCHED, searched
from ..errors import TrainingError
from ..rollouts.datums import datum_metrics, rollout_datums
from ..rollouts.rollout import Rollout
from ..training.batch import TrainingBatch
from ..training.saturation import RewardSaturation, StepSummary
from .on_policy import RolloutAlgorithm, RolloutConfig, rollout_metrics

if TYPE_CHECKING:
    from ..training.frozen_model import FrozenModel
    from ..training.loop import LoopSettings
    from .base import PlannedWork


type Advantage = Literal["mean", "std", "rloo"]
type Normalisation = Literal["token", "sequence", "fixed"]
_SPEND = frozenset({"tokens_sampled", "cost_usd"})
"""Metrics of the cost of a step's rollouts."""


@dataclass(frozen=True, slots=True)
class Experience:
    """The training data of one iteration of rollouts."""

    data: list[Datum]
    metrics: dict[str, float]
    rollouts: tuple[Rollout, ...] = ()


class RL(RolloutAlgorithm):
    """Policy gradient on groups of rollouts, rewarded by verifiers."""

    name: ClassVar[str] = "rl"

    class Config(RolloutConfig):
        """Parameters of `rl`."""

        group_size: int = Field(default=8, ge=2, json_schema_extra=searched(scale="log"))
        """Rollouts per task; below 4, most groups have equal rewards."""
        advantage: Advantage = "mean"
        """Baseline of a reward: the group's mean, the mean scaled by standard deviation, or the mean of the others."""
        loss_fn: Literal["importance_sampling", "ppo", "cispo", "gspo"] = "importance_sampling"
        """How the policy gradient is corrected for the change of the policy since sampling."""
        clip_low: float | None = Field(default=None, ge=0)
        """Lower clip threshold of the ratio, for losses that clip; by default the loss's own."""
        clip_high: float | None = Field(default=None, gt=0)
        """Upper clip threshold of the ratio; above 1.2, rare tokens can rise faster."""
        normalise: Normalisation = "token"
        """Weigh each token, each rollout, or each rollout at full length equally."""
        updates_per_batch: int = Field(default=1, ge=1)
        """Optimiser steps on the same rollouts; above 1, use a loss that clips."""
        kl_coefficient: float = Field(default=0.0, ge=0, json_schema_extra=searched(scale="log"))
        """Penalty on divergence from the initial policy, subtracted from the advantages."""
        overlong_penalty: float = Field(default=0.0, ge=0)
        """Subtracted from the reward of a truncated rollout."""
        max_refills: int = Field(default=0, ge=0, json_schema_extra=NOT_SEARCHED)
        """Groups of other tasks that replace groups with equal rewards in a step (dynamic sampling); they cost as much
        as others.
        """
        max_staleness: int = Field(default=0, ge=0, json_schema_extra=NOT_SEARCHED)
        """Iterations that rollouts may lag behind the policy; above 0, sampling overlaps training."""

        @model_validator(mode="after")
        def _clips_where_it_can(self) -> Self:
            if self.loss_fn == "importance_sampling" and (self.clip_low, self.clip_high) != (None, None):
                raise ValueError(
                    "importance_sampling does not clip. Remove clip_low and clip_high, or set loss_fn to ppo, cispo or "
                    "gspo."
                )
            if (self.clip_low or 0) > 1 or (self.clip_high or 1) < 1:
                raise ValueError(
                    "clip_low and clip_high are ratios around 1, not distances from it. Write 0.8 and 1.2 for 0.2."
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
        self._base = self.frozen(await self.client.sampler()) if self.cfg.kl_coefficient else None
        self._next_iteration = 0
        self._experience: tuple[int, Experience] | None = None
        self._saturation = RewardSaturation()
        self._why_empty = ""

    def close(self) -> None:
        for task in self._pending:
            if not task.cancel() and not task.cancelled():
                task.exception()  # marks the exception as retrieved
        super().close()

    def settings(self) -> LoopSettings:
        # A checkpoint between two updates on the same rollouts could not be resumed.
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
            # Kept for further updates on the same rollouts.
            self._experience = (iteration, await self._learnable(groups))
            self._check_saturation(step_idx + 1, self._experience[1])
        experience = self._experience[1]
        metrics, rollouts = dict(experience.metrics), experience.rollouts
        if step_idx % self.cfg.updates_per_batch:  # these rollouts were counted and recorded with an earlier step
            metrics, rollouts = metrics | dict.fromkeys(_SPEND & metrics.keys(), 0.0), ()
        return TrainingBatch(
            experience.data,
            self.cfg.loss_fn,
            self._loss_config(),
            metrics=metrics,
            rollouts=rollouts,
            empty_because="" if experience.data else self._why_empty,
        )

    def state(self) -> dict[str, Any]:
        return {"saturation": self._saturation.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._saturation.restore(state.get("saturation", {}))

    def compute_advantages(self, groups: Sequence[Sequence[Rollout]]) -> Sequence[Sequence[float]]:
        """The advantage of each rollout; override it for another estimator.

        Each group has the rewarded rollouts of one task, see `reward_of`. A group with only zero advantages is dropped
        and counted as `groups/constant`.
        """
        return [group_advantages(list(map(self.reward_of, group)), self.cfg.advantage) for group in groups]

    def reward_of(self, rollout: Rollout) -> float:
        """The reward of a rollout, less `overlong_penalty` if truncated."""
        assert rollout.reward is not None
        return rollout.reward - (self.cfg.overlong_penalty if rollout.status == "truncated" else 0.0)

    async def sample_groups(self, iteration: int) -> list[list[Rollout]]:
        """The rollouts of one iteration, one group per task; override it to select other tasks."""
        sampler = await self.client.sampler()
        size, chosen = self.cfg.group_size, list(self.order().indices(iteration))
        roll_out = partial(self.roll_out_with, sampler, n_samples=size, iteration=iteration)
        groups = await roll_out([self.tasks[index] for index in chosen])
        others = [index for index in range(len(self.tasks)) if index not in set(chosen)]
        # Seeded by the iteration, so that a resumed run refills with the same tasks.
        Random(f"{self.seed}:{iteration}").shuffle(others)
        others = others[: self.cfg.max_refills]
        while others and (missing := len(chosen) - sum(map(self._has_differences, groups))):
            groups += await roll_out([self.tasks[index] for index in others[:missing]])
            others = others[missing:]
        return groups

    def _check_saturation(self, step: int, experience: Experience) -> None:
        """End a run whose rewards no longer differ, with its weights saved and scored."""
        now = StepSummary.of(step, experience.rollouts)
        saturation = self._saturation.update(replace(now, constant=not experience.data))
        self._why_empty = saturation.text if saturation is not None else "The rewards do not differ within any group."
        if saturation is not None and saturation.ends_run:
            self.services.control.stop(saturation.text, stage=True)

    async def _rollouts(self, iteration: int) -> list[list[Rollout]]:
        """The rollouts of this iteration; those of the next ones are started as far as staleness allows."""
        last = (self.total_steps() - 1) // self.cfg.updates_per_batch
        # A resumed run does not start at iteration 0.
        self._next_iteration = max(self._next_iteration, iteration)
        # With max_staleness 0, only this iteration.
        while self._next_iteration <= min(iteration + self.cfg.max_staleness, last):
            self._pending.append(asyncio.create_task(self.sample_groups(self._next_iteration)))
            self._next_iteration += 1
        return await self._pending.popleft()

    async def plan(self, n_rows: int) -> PlannedWork:
        work = await super().plan(n_rows)
        iterations = -(-work.steps // self.cfg.updates_per_batch)
        refills = iterations * min(self.cfg.max_refills, max(n_rows - self.cfg.batch_size, 0)) * self.cfg.group_size
        return replace(work, answers_sampled=work.answers_sampled + refills)

    def _has_differences(self, group: Sequence[Rollout]) -> bool:
        return len({self.reward_of(rollout) for rollout in group if rollout.reward is not None}) > 1

    async def _learnable(self, groups: Sequence[Sequence[Rollout]]) -> Experience:
        """Advantages and datums of the groups with a gradient."""
        learnable: list[list[Datum]] = []
        metrics: dict[str, float] = {}
        constant = 0
        scored = [[rollout for rollout in group if rollout.reward is not None] for group in groups]
        for group, advantages in zip(scored, self._advantages(scored), strict=True):
            if not any(advantages):
                constant += 1
                continue
            for rollout, advantage in zip(group, advantages, strict=True):
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

    def _advantages(self, groups: Sequence[Sequence[Rollout]]) -> list[list[float]]:
        """The result of `compute_advantages`, validated: one finite number per rollout."""
        returned = [list(map(float, group)) for group in self.compute_advantages(groups)]
        if [len(group) for group in returned] != [len(group) for group in groups]:
            expected, lengths = [len(group) for group in groups], [len(group) for group in returned]
            raise TrainingError(
                f"compute_advantages returned {lengths} numbers for groups of {expected}. Return one per rollout."
            )
        if not all(math.isfinite(advantage) for group in returned for advantage in group):
            raise TrainingError(
                "compute_advantages returned a number that is not finite. Guard against division by zero."
            )
        if _agreement(returned, [list(map(self.reward_of, group)) for group in groups]) < 0:
            raise TrainingError(
                "compute_advantages gives rollouts with higher rewards lower advantages. Check its sign: the "
                "probability of a rollout with a positive advantage rises."
            )
        return returned

    async def _with_kl_penalty(
        self, base: FrozenModel, rollouts: Sequence[Sequence[Datum]]
    ) -> tuple[list[list[Datum]], float]:
        """Advantages with a KL penalty per token, and the mean divergence from the initial policy."""
        total, base_logprobs = 0.0, iter(await base.logprobs_async([datum for data in rollouts for datum in data]))

        def penalise(datum: Datum) -> Datum:
            nonlocal total
            sampled, before, advantages = datum.weights != 0, datum.logprobs, datum.advantages
            assert before is not None
            assert advantages is not None
            divergence = np.zeros_like(before)
            divergence[sampled] = before[sampled] - next(base_logprobs)
            total += float(divergence.sum())
            return replace(datum, advantages=advantages - np.float32(self.cfg.kl_coefficient) * divergence)

        penalised = [[penalise(datum) for datum in data] for data in rollouts]
        tokens = sum(int((datum.weights != 0).sum()) for data in rollouts for datum in data)
        return penalised, total / max(tokens, 1)

    def _loss_config(self) -> Mapping[str, Any] | None:
        if self.cfg.loss_fn == "importance_sampling":
            return None
        thresholds = {"clip_low_threshold": self.cfg.clip_low, "clip_high_threshold": self.cfg.clip_high}
        return {key: value for key, value in thresholds.items() if value is not None}


def group_advantages(rewards: Sequence[float], kind: Advantage = "mean") -> list[float]:
    """Advantages relative to the group; all zero for equal rewards or a single rollout."""
    values = np.asarray(rewards, dtype=np.float64)
    # Exactly zero: dividing by the standard deviation would amplify rounding errors.
    if len(values) < 2 or np.ptp(values) == 0:
        return [0.0] * len(values)
    centred = values - values.mean()
    if kind == "std":
        centred /= values.std()
    elif kind == "rloo":  # the mean of the others: a - (S - a) / (n - 1) = (a - mean) * n / (n - 1)
        centred *= len(values) / (len(values) - 1)
    return [float(advantage) for advantage in centred]


def normalise_advantages(rollouts: Sequence[Sequence[Datum]], kind: Normalisation, max_tokens: int) -> list[Datum]:
    """Scale advantages so that the backend's sum over tokens becomes the requested mean."""
    lengths = [sum(int((datum.weights > 0).sum()) for datum in data) for data in rollouts]
    sizes = {
        # Divisors: all tokens, own tokens times rollouts, or maximum length times rollouts.
        "token": [sum(lengths)] * len(lengths),
        "sequence": [len(lengths) * length for length in lengths],
        "fixed": [len(lengths) * max_tokens] * len(lengths),
    }[kind]
    return [_scale(datum, 1 / size) for data, size in zip(rollouts, sizes, strict=True) for datum in data]


def _spent_on(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """The cost of rollouts: sampled tokens, and dollars reported by unmetered judges."""
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


def _agreement(advantages: Sequence[Sequence[float]], rewards: Sequence[Sequence[float]]) -> float:
    """The sum of the covariances of advantages and rewards within groups."""
    pairs = [pair for pair in zip(advantages, rewards, strict=True) if pair[0]]
    return sum(sum(a * (r - sum(given) / len(given)) for a, r in zip(of, given, strict=True)) for of, given in pairs)
