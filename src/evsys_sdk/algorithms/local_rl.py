"""`local_rl`: reinforcement learning with TRL's GRPOTrainer, on the same tasks and verifiers as `rl`.

One question and one answer per attempt: agents and environments are for `rl`. TRL samples with `generate`, one prompt
for each attempt, so it takes several times as long; it is here as a check, and for people who want TRL.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import ConfigError, Problem
from ..protocols import RunContext
from ..rollouts.environments.none import NoEnvironment
from ..rollouts.harness import Harness
from ..rollouts.rollout import Rollout, Turn, opening
from ..training.blocking import run_blocking
from .rl import RL
from .trl_run import TrlAlgorithm

_LOSSES = {"token": "dapo", "sequence": "grpo", "fixed": "dr_grpo"}
"""TRL's names for what counts the same: each token, each attempt, each attempt at full length."""


class LocalRL(TrlAlgorithm):
    """Reinforcement learning with TRL's GRPOTrainer on the local backend."""

    name: ClassVar[str] = "local_rl"
    Recipe = RL
    Config = RL.Config

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.check_params(self.cfg)

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Refuse what TRL's trainer does not do; asked by deep validation."""
        unsupported = {
            "agent": params.agent,
            "agent_import_path": params.agent_import_path,
            "environment": params.environment,
            "engine": params.engine if params.engine != "inline" else None,
            "overlong_penalty": params.overlong_penalty,
            "max_staleness": params.max_staleness,
            "advantage": params.advantage if params.advantage == "rloo" else None,
            "loss_fn": params.loss_fn if params.loss_fn in ("cispo", "gspo") else None,
        }
        for name, value in unsupported.items():
            if value:
                hint = "Remove it, or use the algorithm 'rl'."
                raise ConfigError(Problem(f"'local_rl' does not take {name}", f"algorithm.params.{name}", value, hint))

    def harness(self) -> Harness:
        """What the policy is trained in, and must be evaluated in: one question and one answer."""
        return self.recipe.harness()

    def trainer(self, ctx: RunContext, model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        cfg = self.cfg
        config = GRPOConfig(
            **arguments,
            per_device_train_batch_size=cfg.batch_size * cfg.group_size,
            num_generations=cfg.group_size,
            max_completion_length=cfg.sampling.max_tokens,
            temperature=cfg.sampling.temperature,
            beta=cfg.kl_coefficient,
            loss_type=_LOSSES[cfg.normalise],
            scale_rewards="group" if cfg.advantage == "std" else "none",
            num_iterations=cfg.updates_per_batch,
            **_clipping(cfg),
            shuffle_dataset=False,
        )
        return GRPOTrainer(
            model,
            args=config,
            train_dataset=self._dataset(),
            reward_funcs=self._reward(self.recipe.services.verify),
            processing_class=ctx.extras["backend_handles"]["tokenizer"],
            optimizers=optimizers,
        )

    def _dataset(self) -> Any:
        """The tasks of all steps, one after another, as conversations."""
        from datasets import Dataset

        recipe = self.recipe
        order = [index for step in range(recipe.total_steps()) for index in recipe.order().indices(step)]
        return Dataset.from_list([{"prompt": opening(recipe.tasks[index]), "task": index} for index in order])

    def _reward(self, verify: Any) -> Any:
        """What TRL asks for rewards; the attempts are recorded as those of every other recipe."""
        tasks, observers, group = self.recipe.tasks, self.recipe.services.observers, self.cfg.group_size

        async def attempt(completion: Any, tokens: Any, number: int, sample: int) -> Rollout:
            answer = {"role": "assistant", "content": completion[0]["content"]}
            turn = Turn(answer, completion_tokens=[int(token) for token in tokens], output_tokens=len(tokens))
            conversation = [*opening(tasks[number]), answer]
            made = Rollout(tasks[number].task_id, sample, "ok", None, [turn], conversation)
            found = await verify(tasks[number], made, NoEnvironment())
            return replace(made, reward=found.reward, info=dict(found.info))

        def reward(
            completions: Any, completion_ids: Any, task: Any, trainer_state: Any, **_: Any
        ) -> list[float | None]:
            async def attempt_all() -> list[Rollout]:
                each = enumerate(zip(completions, completion_ids, task, strict=True))
                return await asyncio.gather(*(attempt(*one, sample % group) for sample, one in each))

            rollouts = run_blocking(attempt_all)
            observers.on_rollouts(trainer_state.global_step + 1, rollouts)
            return [rollout.reward for rollout in rollouts]

        return reward


def _clipping(cfg: RL.Config) -> dict[str, float]:
    """How far a ratio may leave 1, which TRL counts from there; without clipping, as far as it likes."""
    if cfg.loss_fn == "importance_sampling":
        return {"epsilon": 1.0, "epsilon_high": 1e9}
    low, high = (0.8 if cfg.clip_low is None else cfg.clip_low), (1.2 if cfg.clip_high is None else cfg.clip_high)
    return {"epsilon": 1.0 - low, "epsilon_high": high - 1.0}
