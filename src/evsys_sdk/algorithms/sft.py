"""Supervised fine-tuning: raise the probability of the assistant's turns."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..backends.datum import mean_per_token
from ..config.fields import NOT_SEARCHED
from ..data import TargetFormat, parse_rows
from ..training.batch import TrainingBatch
from ..training.examples import LengthLimit, render_chats, to_datums, write_preview
from .base import BaseAlgorithm, TrainingConfig


# Every recipe has this structure: `Config` has the params, with their documentation below each field; `setup` runs once
# and turns rows into examples; `build_batch` selects the examples and the loss of a step. The loop, the schedule,
# checkpoints and evaluation are shared by all recipes.
class SFT(BaseAlgorithm):
    """Supervised fine-tuning on chat rows."""

    name: ClassVar[str] = "sft"

    class Config(TrainingConfig):
        """Parameters of `sft`."""

        supervise: Literal["all_assistant", "last_assistant"] = "all_assistant"
        """Which turns carry loss."""
        max_length: int | None = Field(default=None, ge=2, json_schema_extra=NOT_SEARCHED)
        """Maximum example length in tokens; by default the context length."""
        too_long: Literal["error", "skip", "truncate"] = Field(default="error", json_schema_extra=NOT_SEARCHED)
        """Treatment of longer examples."""

    cfg: Config

    async def setup(self) -> None:
        chats = parse_rows(self.rows, TargetFormat.CHAT_MESSAGES)
        limit = LengthLimit.of(self.cfg.max_length, self.cfg.too_long, self.client.capabilities)
        rendered = render_chats(
            chats, client=self.client, renderer=self.renderer, supervise=self.cfg.supervise, limit=limit
        )
        write_preview(self.run_dir, rendered, self.client)
        self.examples = to_datums(rendered)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        order = self.order()  # a function of the seed and the step, so that a resumed run sees the same batches
        chosen = [self.examples[index] for index in order.indices(step_idx)]
        supervised = float(sum(example.weights.sum() for example in chosen))
        # Backends sum over tokens. Dividing here makes the loss a mean, so learning rates are comparable.
        return TrainingBatch(
            mean_per_token(chosen), metrics={"epoch": order.epoch(step_idx), "supervised_tokens": supervised}
        )

    def n_examples(self) -> int:
        return len(self.examples)

    @property
    def uses_every_row(self) -> bool:
        return self.cfg.too_long == "error"


class MockSFT(SFT):
    """Supervised fine-tuning that always runs on the mock backend."""

    name: ClassVar[str] = "mock_sft"
    pinned_backend: ClassVar[str | None] = "mock"
