"""Direct preference optimisation: prefer the chosen over the rejected answer, relative to the reference model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from pydantic import Field

from ..backends.checks import check_recipe
from ..backends.datum import Datum
from ..backends.losses import numpy_loss
from ..config.fields import NOT_SEARCHED, searched
from ..data.shapes import check_tools
from ..errors import DataError
from ..protocols import Row
from ..training.batch import TrainingBatch
from ..training.examples import LengthLimit, TooLong, can_learn_from, in_row, to_datums, warn_left_out, write_preview
from .base import BaseAlgorithm, TrainingConfig

if TYPE_CHECKING:
    from ..backends.losses import LossCallable
    from ..inference.renderer import Rendered

type Array = np.ndarray[Any, np.dtype[np.float32]]

_FORWARD_BATCH = 64


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, with their reference margin."""

    chosen: Datum
    rejected: Datum
    reference_margin: float
    """log p(chosen) - log p(rejected) under the reference model."""


class DPO(BaseAlgorithm):
    """Direct preference optimisation on rows with a prompt, a chosen and a rejected answer."""

    name: ClassVar[str] = "dpo"

    class Config(TrainingConfig):
        """Parameters of `dpo`."""

        beta: float = Field(default=0.1, gt=0, json_schema_extra=searched(scale="log"))
        """Strength of the KL constraint to the reference model; smaller allows larger changes."""
        max_length: int | None = Field(default=None, ge=2, json_schema_extra=NOT_SEARCHED)
        """Maximum example length in tokens; by default the context length."""
        too_long: TooLong = Field(default="error", json_schema_extra=NOT_SEARCHED)
        """Treatment of longer examples; a pair is kept or skipped as a whole."""

    cfg: Config

    async def setup(self) -> None:
        check_recipe(self.client.capabilities, path="algorithm.kind", sums="the margin that dpo learns")
        limit = LengthLimit.of(self.cfg.max_length, self.cfg.too_long, self.client.capabilities)
        rendered: list[tuple[Rendered, Rendered]] = []
        for number, row in enumerate(self.rows, start=1):
            with in_row(number):
                both = [self._render(row, answer) for answer in ("chosen", "rejected")]
            chosen, rejected = (limit.apply(example, number) for example in both)
            if can_learn_from(chosen) and can_learn_from(rejected):
                rendered.append((chosen, rejected))
        warn_left_out(len(self.rows) - len(rendered), "preference pairs")
        if not rendered:
            raise DataError("no row gives a preference pair to learn from. Check data.path and data.transforms.")
        write_preview(self.run_dir, [example for pair in rendered for example in pair], self.client)
        datums = to_datums([example for pair in rendered for example in pair])
        # Computed in `setup`, when the client has the initial weights, even on resume.
        reference = await self._sequence_logprobs(datums)
        self.pairs = [Pair(datums[i], datums[i + 1], reference[i] - reference[i + 1]) for i in range(0, len(datums), 2)]

    @property
    def uses_every_row(self) -> bool:
        return self.cfg.too_long == "error"

    def n_examples(self) -> int:
        return len(self.pairs)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        pairs = [self.pairs[index] for index in self.order().indices(step_idx)]
        data = [datum for pair in pairs for datum in (pair.chosen, pair.rejected)]
        loss = dpo_loss(np.array([pair.reference_margin for pair in pairs]), self.cfg.beta)
        return TrainingBatch(data, loss_fn=loss, metrics={"epoch": self.order().epoch(step_idx)})

    def _render(self, row: Row, answer: str) -> Rendered:
        missing = [field for field in ("prompt", "chosen", "rejected") if field not in row]
        if missing:
            raise DataError(
                f"it has no '{missing[0]}'; its keys are {', '.join(row)}. "
                "A preference row has 'prompt', 'chosen' and 'rejected', each a text or a list of messages."
            )
        prompt = _messages(row["prompt"], "user")
        messages = [*prompt, _answer(row[answer], answer, prompt)]
        return self.renderer.render(messages, "last_assistant", check_tools(row.get("tools")))[0]

    async def _sequence_logprobs(self, datums: Sequence[Datum]) -> list[float]:
        """log p(answer) of each sequence under the current weights, which are the initial ones here."""
        sums: list[float] = []
        for start in range(0, len(datums), _FORWARD_BATCH):
            batch = datums[start : start + _FORWARD_BATCH]
            output = await self.client.forward(batch)
            sums += [
                float((lp * d.weights).sum(dtype=np.float64)) for lp, d in zip(output.logprobs, batch, strict=True)
            ]
        return sums


def dpo_loss(reference_margins: np.ndarray, beta: float) -> LossCallable:
    """The mean over pairs of -log sigmoid(beta * (margin - reference margin)); data alternate chosen, rejected."""

    @numpy_loss
    def loss(data: Sequence[Datum], logprobs: Sequence[Array]) -> tuple[float, Mapping[str, float], list[Array]]:
        # In float64: float32 rounding of long sums would dominate the differences.
        sums = np.array([(lp * d.weights).sum(dtype=np.float64) for lp, d in zip(logprobs, data, strict=True)])
        margins = beta * (sums[0::2] - sums[1::2] - reference_margins)
        # d/dm of mean(-log sigmoid(m)) = -sigmoid(-m) / n
        slopes = -beta * _sigmoid(-margins) / len(margins)
        # Chosen and rejected alternate, with opposite signs.
        signed = np.stack([slopes, -slopes], axis=1).reshape(-1)
        gradients = [(slope * datum.weights).astype(np.float32) for slope, datum in zip(signed, data, strict=True)]
        metrics = {"dpo/margin": float(margins.mean()), "dpo/accuracy": float((margins > 0).mean())}
        return float(np.logaddexp(0.0, -margins).mean()), metrics, gradients

    return loss


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))  # 1 / (1 + exp(-x)) would overflow for a large margin


def _messages(value: Any, role: str) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [{"role": role, "content": value}]


def _answer(value: Any, field: str, prompt: Sequence[Any]) -> Any:
    """The single assistant turn of an answer, which many datasets write with the prompt in front of it."""
    messages = _messages(value, "assistant")
    answer_messages = messages[len(prompt) :] if messages[: len(prompt)] == prompt else messages
    roles = [cast("Row", message).get("role") if isinstance(message, dict) else message for message in answer_messages]
    if roles != ["assistant"]:
        raise DataError(
            f"'{field}' has {f'messages of {", ".join(map(str, roles))}' if roles else 'no message'} after the prompt. "
            "Move everything before the answer to 'prompt', and keep one assistant message."
        )
    return answer_messages[0]
