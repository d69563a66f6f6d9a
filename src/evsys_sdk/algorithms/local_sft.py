"""`local_sft`: supervised fine-tuning with TRL's SFTTrainer, on the same rows as `sft`.

For people who want TRL, and as a check of our own engine: from the same start and in the same order, both go through
the same losses. The two differ where an epoch ends in a smaller batch, which TRL fills up with the next epoch.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any, ClassVar

from ..protocols import RunContext, RunResult
from ..training.blocking import run_blocking
from .sft import SFT
from .trl_run import train_with_trl


class LocalSFT:
    """Supervised fine-tuning with TRL's SFTTrainer on the local backend."""

    name: ClassVar[str] = "local_sft"
    pinned_backend: ClassVar[str] = "local"
    Config = SFT.Config

    def __init__(self, **params: Any) -> None:
        self._recipe = SFT(**params)
        self.cfg = self._recipe.cfg

    def planned_steps(self, ctx: RunContext) -> int | None:
        """How many steps are to be expected."""
        return self._recipe.planned_steps(ctx)

    def train(self, ctx: RunContext) -> RunResult:
        """Train one run from its rows to its final checkpoint."""
        recipe, extras = self._recipe, ctx.extras
        recipe.bind(
            client=extras["backend_handles"]["training_client"],
            renderer=extras["renderer"],
            rows=extras["train_rows"],
            seed=extras["seed"],
            run_dir=ctx.output_dir,
            services=extras,
        )
        run_blocking(recipe.setup)

        def make(model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
            from trl.trainer.sft_config import SFTConfig
            from trl.trainer.sft_trainer import SFTTrainer

            config = SFTConfig(
                **arguments,
                per_device_train_batch_size=recipe.cfg.batch_size,
                train_sampling_strategy="sequential",
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
            )
            tokenizer = extras["backend_handles"]["tokenizer"]
            return SFTTrainer(
                model, args=config, train_dataset=self._dataset(), processing_class=tokenizer, optimizers=optimizers
            )

        return train_with_trl(ctx, recipe, name=self.name, make=make)

    def _dataset(self) -> Any:
        """The examples of all steps, one after another; what carries no loss has the label -100."""
        from datasets import Dataset

        recipe = self._recipe
        rows: list[dict[str, list[int]]] = []
        for step in range(recipe.total_steps()):
            for example in (recipe.examples[index] for index in recipe.order().indices(step)):
                targets, weights = example.target_tokens.tolist(), example.weights.tolist()
                labels = [token if weight else -100 for token, weight in zip(targets, weights, strict=True)]
                rows.append({"input_ids": [*example.tokens.tolist(), targets[-1]], "labels": [-100, *labels]})
        return Dataset.from_list(rows)
