"""On-policy distillation: learn from another model's opinion of one's own answers."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from pydantic import Field

from ..backends.client import SamplingClient
from ..data import TargetFormat, detect_format, parse_rows
from ..inference.renderer import row_messages
from ..protocols import Row
from ..rollouts.rollout import Message, opening
from ..training.batch import TrainingBatch
from .distillation import Divergence, ask_teacher, distillation_batch, lesson
from .on_policy import OnPolicyAlgorithm, OnPolicyConfig


class OPD(OnPolicyAlgorithm):
    """On-policy distillation from a teacher that shares the tokenizer."""

    name: ClassVar[str] = "opd"

    class Config(OnPolicyConfig):
        """Parameters of `opd`."""

        teacher: str = Field(min_length=1)
        """Checkpoint or sampler of the teacher, as the backend names it."""
        divergence: Divergence = "sampled"
        """Which divergence from the teacher is lowered."""
        top_k: int = Field(default=20, ge=1)
        """How many of the teacher's alternatives per position become soft targets."""

    cfg: Config

    async def setup(self) -> None:
        self.prompts = [_prompt(row) for row in self.rows]
        self._teacher: SamplingClient = await self.client.open_sampler(self.cfg.teacher)

    def n_examples(self) -> int:
        return len(self.prompts)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        prompts = [self.prompts[index] for index in self.order().indices(step_idx)]
        policy = self.policy(await self.client.sampler())
        acting = (policy.seeded(step_idx, index).act(prompt) for index, prompt in enumerate(prompts))
        turns = await asyncio.gather(*acting)
        asked = [ask_teacher(self._teacher, turn.prompt_tokens, turn, self.cfg.top_k) for turn in turns]
        lessons = [await lesson(turn, len(turn.prompt_tokens), *ops) for turn, ops in zip(turns, asked, strict=True)]
        batch = distillation_batch(lessons, self.cfg.divergence)
        batch.metrics["epoch"] = self.order().epoch(step_idx)
        return batch


def _prompt(row: Row) -> list[Message]:
    """What the student is asked: a task's opening, or a conversation up to its last answer."""
    if detect_format(row) == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return opening(task)
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    messages = [dict(message) for message in row_messages(chat)]
    return messages[:-1] if messages[-1]["role"] == "assistant" else messages
