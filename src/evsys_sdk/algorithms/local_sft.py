"""`local_sft`: supervised fine-tuning with TRL's SFTTrainer, on the same rows as `sft`.

For people who want TRL, and as a check of our own engine: from the same start and in the same order, both go through
the same losses. The two differ where an epoch ends in a smaller batch, which TRL fills up with the next epoch.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any, ClassVar

from ..protocols import RunContext
from .sft import SFT
from .trl_run import TrlAlgorithm


class LocalSFT(TrlAlgorithm):
    """Supervised fine-tuning with TRL's SFTTrainer on the local backend."""

    name: ClassVar[str] = "local_sft"
    Recipe = SFT
    Config = SFT.Config

    def trainer(self, ctx: RunContext, model: Any, arguments: dict[str, Any], optimizers: tuple[Any, Any]) -> Any:
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        config = SFTConfig(
            **arguments,
            per_device_train_batch_size=self.cfg.batch_size,
            train_sampling_strategy="sequential",
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        return SFTTrainer(
            model,
            args=config,
            train_dataset=self._dataset(),
            processing_class=ctx.extras["backend_handles"]["tokenizer"],
            optimizers=optimizers,
        )

    def _dataset(self) -> Any:
        """The examples of all steps, one after another; what carries no loss has the label -100."""
        from datasets import Dataset

        recipe = self.recipe
        rows: list[dict[str, list[int]]] = []
        for step in range(recipe.total_steps()):
            for example in (recipe.examples[index] for index in recipe.order().indices(step)):
                targets, weights = example.target_tokens.tolist(), example.weights.tolist()
                labels = [token if weight else -100 for token, weight in zip(targets, weights, strict=True)]
                rows.append({"input_ids": [*example.tokens.tolist(), targets[-1]], "labels": [-100, *labels]})
        return Dataset.from_list(rows)
