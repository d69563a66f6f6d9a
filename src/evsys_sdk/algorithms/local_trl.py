"""`local_sft` and `local_rl`: TRL's trainers on our rows, with our record.

TRL trains the local backend's adapter, which is loaded back into the backend's client afterwards. So evaluation,
benchmarks and checkpoints work as for every recipe; only the training loop is TRL's. A run cannot be resumed in the
middle of training.

    class LocalSFT(TrlAlgorithm):
        Recipe = SFT                                             # provides params, rows and their order
        def trainer(self, ctx, model, arguments, optimizers): ...   # returns TRL's trainer
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

from ..errors import BackendError, ConfigError, MissingExtraError, Problem
from ..protocols import AlgorithmTraits, RunContext, RunNotes, RunResult
from ..rollouts.environment import NoEnvironment
from ..rollouts.harness import Harness
from ..rollouts.rollout import Rollout, Turn, opening
from ..training.batch import Schedule
from ..training.blocking import run_blocking
from ..training.callback import RunControl
from ..training.services import services_of
from .base import BaseAlgorithm, TrainingConfig
from .rl import RL
from .sft import SFT


class TrlAlgorithm:
    """A recipe whose training loop is TRL's."""

    name: ClassVar[str] = "trl"
    pinned_backend: ClassVar[str] = "local"
    Recipe: ClassVar[type[BaseAlgorithm]]

    def __init__(self, **params: Any) -> None:
        self.recipe: Any = self.Recipe(**params)
        self.cfg = self.recipe.cfg

    def trainer(self, ctx: RunContext, model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
        """TRL's trainer for a model with its adapter; `arguments` are common to all trainers."""
        raise NotImplementedError(f"algorithm '{self.name}' must define trainer(...)")

    def traits(self) -> AlgorithmTraits:
        """The recipe's traits, with the local backend required."""
        return replace(self.recipe.traits(), pinned_backend=self.pinned_backend)

    def train(self, ctx: RunContext) -> RunResult:
        """Train one run from its rows to its final checkpoint."""
        if any(find_spec(package) is None for package in ("trl", "peft", "datasets")):
            raise MissingExtraError(f"algorithm '{self.name}'", "local")
        recipe, services = self.recipe, services_of(ctx)
        if "base" not in ctx.extras["backend_handles"]:
            raise BackendError(
                f"algorithm '{self.name}' trains on the backend 'local' only. Set backend.kind to local."
            )
        recipe.bind(
            client=services.client,
            renderer=services.renderer,
            rows=ctx.extras["train_rows"],
            seed=services.seed,
            run_dir=ctx.output_dir,
            services=services,
        )
        try:
            run_blocking(recipe.setup)
            return self._train(ctx)
        finally:
            recipe.close()

    def _train(self, ctx: RunContext) -> RunResult:
        """Train the run's adapter with TRL, then load the result into the client."""
        recipe, base = self.recipe, ctx.extras["backend_handles"]["base"]
        attempt = recipe.services.attempt
        # A unique name per attempt: a killed one may have stored its own.
        model = _with_adapter(base, recipe.client.sampler(f"trl-start-{attempt}").result().ref)
        total = recipe.total_steps()
        arguments = {**_arguments(ctx, recipe.cfg, total, base), "seed": recipe.seed}
        trainer = self.trainer(ctx, model, arguments, _optimizer(model, recipe, total))
        trainer.add_callback(_reporter(ctx, recipe.services.control))
        with _quiet():
            trainer.train()
        folder = ctx.output_dir / "trl" / "adapter"
        trainer.model.save_pretrained(str(folder))
        # Load into our client: the run is scored and saved like any other.
        recipe.client.load_state(str(folder), with_optimizer=False).result()
        return _result(ctx, recipe, trainer)


def _with_adapter(base: Any, adapter: str) -> Any:
    from peft import PeftModel

    from ..backends.local.base.loading import load_plain

    # A separate copy: PEFT modifies the model, and the base is shared with other runs.
    return PeftModel.from_pretrained(load_plain(base.key), adapter, is_trainable=True)


def _arguments(ctx: RunContext, cfg: TrainingConfig, total: int, base: Any) -> dict[str, Any]:
    return {
        "output_dir": str(ctx.output_dir / "trl"),
        "max_steps": total,
        "max_grad_norm": cfg.grad_clip_norm,  # 0 disables clipping, as in our loop
        "logging_steps": 1,
        "logging_first_step": True,
        # Our client writes the checkpoint after training.
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": base.device.type == "cpu",
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }


def _optimizer(model: Any, recipe: BaseAlgorithm, total: int) -> tuple[Any, Any]:
    """Adam and the learning-rate schedule of our own loop."""
    import torch

    settings = recipe.settings()
    adam = settings.adam
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=settings.learning_rate,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        weight_decay=adam.weight_decay,
    )
    schedule: Schedule = settings.schedule
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step, total))


_NAMES = {"reward": "reward/mean"}
"""TRL's metric names -> ours."""


def _numbers(logs: dict[str, Any] | None) -> dict[str, float]:
    """TRL's logs with our metric names."""
    numbers = {_NAMES.get(key, key): value for key, value in (logs or {}).items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


def _reporter(ctx: RunContext, run_control: RunControl) -> Any:
    """A transformers callback that logs metrics to the run's record and forwards stop requests to the trainer."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            numbers = _numbers(logs)
            # The trainer's final summary of times belongs to no step.
            if "loss" in numbers:
                ctx.log_store.log_metrics(numbers, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if run_control.stop_reason is not None:
                control.should_training_stop = True

    return Reporter()


def _result(ctx: RunContext, recipe: Any, trainer: Any) -> RunResult:
    services, client = recipe.services, recipe.client
    name = "final" if services.attempt == 1 else f"final-{services.attempt}"
    state, sampler = client.save_state(name).result(), client.sampler(name).result()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    last = _numbers(logged[-1] if logged else {})
    measured = {key: last[key] for key in (recipe.selection_metric,) if key in last and key != "loss"}
    control = services.control
    return RunResult(
        ctx.run_id,
        "cancelled" if control.interrupted else "completed",
        metrics={"final_loss": last.get("loss", math.nan), "steps": float(trainer.state.global_step), **measured},
        artifacts={"final_checkpoint": state, "final_sampler": sampler.ref},
        error=control.stop_reason if control.interrupted else None,
        notes=RunNotes(
            renderer=recipe.renderer.name,
            trainer=type(trainer).__name__,
            selection_metric=recipe.selection_metric,
            selection_mode=recipe.selection_mode,
        ),
    )


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress the trainers' printed logs, which are in the record."""
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        yield


class LocalSFT(TrlAlgorithm):
    """Supervised fine-tuning with TRL's SFTTrainer on the local backend.

    For users of TRL, and as a check of our engine: with the same start and order, both have the same losses. They
    differ if an epoch ends with a smaller batch, which TRL fills from the next epoch.
    """

    name: ClassVar[str] = "local_sft"
    Recipe = SFT
    Config = SFT.Config

    def trainer(self, ctx: RunContext, model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        config = SFTConfig(
            **arguments,
            per_device_train_batch_size=self.cfg.batch_size,
            train_sampling_strategy="sequential",  # the dataset is already in our order
            # TRL cuts at 1024 tokens by default; `setup` has applied the run's limit.
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},  # the rows are already tokenized
        )
        return SFTTrainer(
            model,
            args=config,
            train_dataset=self._dataset(),
            processing_class=ctx.extras["backend_handles"]["tokenizer"],
            optimizers=optimizers,
        )

    def _dataset(self) -> Any:
        """The examples of all steps in order; tokens without loss have the label -100."""
        from datasets import Dataset

        recipe = self.recipe
        rows: list[dict[str, list[int]]] = []
        for step in range(recipe.total_steps()):
            for example in (recipe.examples[index] for index in recipe.order().indices(step)):
                targets, weights = example.target_tokens.tolist(), example.weights.tolist()
                labels = [token if weight else -100 for token, weight in zip(targets, weights, strict=True)]
                rows.append({"input_ids": [*example.tokens.tolist(), targets[-1]], "labels": [-100, *labels]})
        return Dataset.from_list(rows)


_LOSSES = {"token": "dapo", "sequence": "grpo", "fixed": "dr_grpo"}
"""TRL's names for equal weight per token, per rollout, and per rollout at full length."""


class LocalRL(TrlAlgorithm):
    """Reinforcement learning with TRL's GRPOTrainer on the local backend.

    One question and one answer per rollout; for agents and environments use `rl`. TRL samples with `generate`, one
    prompt per rollout, which takes several times as long; this recipe is a check, and for users of TRL.
    """

    name: ClassVar[str] = "local_rl"
    Recipe = RL
    Config = RL.Config

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.check_params(self.cfg)

    @classmethod
    def check_params(cls, params: Any) -> None:
        """Refuse options that TRL's trainer lacks; called by deep validation."""
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
                raise ConfigError(
                    Problem(f"'local_rl' does not support {name}", f"algorithm.params.{name}", value, hint)
                )

    def harness(self) -> Harness:
        """The harness of training and evaluation: one question and one answer."""
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
            **_clip_bounds(cfg),
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
        """The tasks of all steps in order, as conversations."""
        from datasets import Dataset

        recipe = self.recipe
        order = [index for step in range(recipe.total_steps()) for index in recipe.order().indices(step)]
        return Dataset.from_list([{"prompt": opening(recipe.tasks[index]), "task": index} for index in order])

    def _reward(self, verify: Any) -> Any:
        """TRL's reward function; rollouts are recorded as for every recipe."""
        tasks, observers, group = self.recipe.tasks, self.recipe.services.observers, self.cfg.group_size

        async def attempt(completion: Any, tokens: Any, number: int, sample: int) -> Rollout:
            answer = {"role": "assistant", "content": completion[0]["content"]}
            turn = Turn(answer, completion_tokens=[int(token) for token in tokens], output_tokens=len(tokens))
            conversation = [*opening(tasks[number]), answer]
            rollout = Rollout(tasks[number].task_id, sample, "ok", None, [turn], conversation)
            verdict = await verify(tasks[number], rollout, NoEnvironment())
            return replace(rollout, reward=verdict.reward, info=dict(verdict.info))

        def reward(
            completions: Any, completion_ids: Any, task: Any, trainer_state: Any, **_: Any
        ) -> list[float | None]:
            async def attempt_all() -> list[Rollout]:
                each = enumerate(zip(completions, completion_ids, task, strict=True))
                # TRL puts the rollouts of one prompt next to each other.
                return await asyncio.gather(*(attempt(*item, sample % group) for sample, item in each))

            rollouts = run_blocking(attempt_all)
            observers.on_rollouts(trainer_state.global_step + 1, rollouts)
            return [rollout.reward for rollout in rollouts]

        return reward


def _clip_bounds(cfg: RL.Config) -> dict[str, float]:
    """Clip bounds as distances from 1, TRL's convention; very wide without clipping."""
    if cfg.loss_fn == "importance_sampling":
        return {"epsilon": 1.0, "epsilon_high": 1e9}
    low, high = (0.8 if cfg.clip_low is None else cfg.clip_low), (1.2 if cfg.clip_high is None else cfg.clip_high)
    return {"epsilon": 1.0 - low, "epsilon_high": high - 1.0}
