"""What `local_sft` and `local_rl` share: a trainer of TRL between our rows and our record.

The adapter that TRL trains starts as the one that the local backend made, and goes back into the backend's client when
it is trained. So evaluation, benchmarks and checkpoints are those of every other recipe; only the training is TRL's. A
run cannot be resumed in the middle of it.

    class LocalSFT(TrlAlgorithm):
        Recipe = SFT                                             # whose params, rows and order of rows it takes
        def trainer(self, ctx, model, arguments, optimizers): ...   # the trainer of TRL
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

from ..errors import BackendError, MissingExtraError
from ..protocols import AlgorithmTraits, RunContext, RunNotes, RunResult
from ..training.blocking import run_blocking
from ..training.callback import RunControl
from ..training.schedule import Schedule
from ..training.services import services_of
from .base import BaseAlgorithm, TrainingConfig


class TrlAlgorithm:
    """A recipe of ours whose training is left to TRL."""

    name: ClassVar[str] = "trl"
    pinned_backend: ClassVar[str] = "local"
    Recipe: ClassVar[type[BaseAlgorithm]]

    def __init__(self, **params: Any) -> None:
        self.recipe: Any = self.Recipe(**params)
        self.cfg = self.recipe.cfg

    def trainer(self, ctx: RunContext, model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
        """A trainer of TRL for a model with its adapter; `arguments` are those that every trainer takes."""
        raise NotImplementedError(f"algorithm '{self.name}' must define trainer(...)")

    def traits(self) -> AlgorithmTraits:
        """Those of the recipe, trained here and nowhere else."""
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
        """Hand the run's adapter to the trainer, and take over what became of it."""
        recipe, base = self.recipe, ctx.extras["backend_handles"]["base"]
        attempt = recipe.services.attempt
        model = _with_adapter(base, recipe.client.sampler(f"trl-start-{attempt}").result().ref)
        total = recipe.total_steps()
        arguments = {**_arguments(ctx, recipe.cfg, total, base), "seed": recipe.seed}
        trainer = self.trainer(ctx, model, arguments, _optimizer(model, recipe, total))
        trainer.add_callback(_reporter(ctx, recipe.services.control))
        with _quiet():
            trainer.train()
        folder = ctx.output_dir / "trl" / "adapter"
        trainer.model.save_pretrained(str(folder))
        recipe.client.load_state(str(folder), with_optimizer=False).result()
        return _result(ctx, recipe, trainer)


def _with_adapter(base: Any, adapter: str) -> Any:
    from peft import PeftModel

    from ..backends.local.base.loading import load_plain

    return PeftModel.from_pretrained(load_plain(base.key), adapter, is_trainable=True)


def _arguments(ctx: RunContext, cfg: TrainingConfig, total: int, base: Any) -> dict[str, Any]:
    return {
        "output_dir": str(ctx.output_dir / "trl"),
        "max_steps": total,
        "max_grad_norm": cfg.grad_clip_norm,  # 0 does not clip, as with us
        "logging_steps": 1,
        "logging_first_step": True,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": base.device.type == "cpu",
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }


def _optimizer(model: Any, recipe: BaseAlgorithm, total: int) -> tuple[Any, Any]:
    """Adam and the learning rates as our own loop would have them."""
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
"""What TRL calls otherwise than we do."""


def _numbers(logs: dict[str, Any] | None) -> dict[str, float]:
    """What TRL logged, by our names."""
    return {_NAMES.get(key, key): float(value) for key, value in (logs or {}).items() if _is_number(value)}


def _reporter(ctx: RunContext, asked: RunControl) -> Any:
    """A callback of transformers that passes metrics on to the run's record and a stop on to the trainer."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            numbers = _numbers(logs)
            if "loss" in numbers:
                ctx.log_store.log_metrics(numbers, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if asked.stop_reason is not None:
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep the trainers from printing their logs, which are in the record already."""
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        yield
