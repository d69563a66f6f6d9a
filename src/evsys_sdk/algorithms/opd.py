"""On-policy distillation: learn from another model's opinion of one's own answers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..backends.checks import check_recipe
from ..config.fields import searched
from ..data import TargetFormat, detect_format, parse_rows
from ..errors import DataError
from ..inference.renderer import row_messages
from ..protocols import Row
from ..rollouts.rollout import Message, opening
from ..training.batch import TrainingBatch
from .distillation import Divergence, answer_rollouts, ask_teacher, check_divergence, distillation_batch
from .on_policy import OnPolicyAlgorithm, OnPolicyConfig, row_name


class OPD(OnPolicyAlgorithm):
    """On-policy distillation from a teacher that shares the tokenizer."""

    name: ClassVar[str] = "opd"
    selection_metric: ClassVar[str] = "teacher/reverse_kl"

    class Config(OnPolicyConfig):
        """Parameters of `opd`."""

        teacher: str = Field(min_length=1)
        """Checkpoint or sampler of the teacher, as the backend names it."""
        divergence: Divergence = "forward"
        """Which divergence from the teacher is lowered; `sampled` looks at sampled tokens only and is noisy."""
        top_k: int = Field(
            default=20,
            ge=1,
            json_schema_extra=searched(scale="log", when={"divergence": ["forward", "reverse", "jsd"]}),
        )
        """How many of the teacher's alternatives per position become soft targets."""

    cfg: Config

    async def setup(self) -> None:
        check_divergence(self.cfg.divergence, self.cfg.top_k, self.client.capabilities)
        check_recipe(self.client.capabilities, path="algorithm.kind", snapshots="the teacher, and training with it")
        self.prompts = [_prompt(row, number) for number, row in enumerate(self.rows, start=1)]
        self._teacher = self.frozen(await self.client.open_sampler(self.cfg.teacher))

    def n_examples(self) -> int:
        return len(self.prompts)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        indices = list(self.order().indices(step_idx))
        conversations = [self.prompts[index] for index in indices]
        answers = await self.answers(conversations, step_idx)
        turns = [turn for turn in answers if turn is not None]
        lessons = await ask_teacher(
            self._teacher,
            [turn.prompt_tokens for turn in turns],
            turns,
            top_k=0 if self.cfg.divergence == "sampled" else self.cfg.top_k,
        )
        batch = distillation_batch(lessons, self.cfg.divergence)
        batch.metrics |= {
            "epoch": self.order().epoch(step_idx),
            "tokens_sampled": sum(len(turn.completion_tokens) for turn in turns),
            "answers/no_room": len(conversations) - len(turns),
        }
        batch.rollouts = answer_rollouts(conversations, [row_name(self.rows, i) for i in indices], answers, lessons)
        return batch


def _prompt(row: Row, number: int) -> list[Message]:
    """What the student is asked: a task's opening, or a conversation up to its last answer."""
    if detect_format(row) == "harbor_task":
        [task] = parse_rows([row], TargetFormat.HARBOR_TASK)
        return opening(task)
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    messages = [dict(message) for message in row_messages(chat)]
    question = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    if not question:
        raise DataError(f"row {number} has an answer but no question. Add the message it answers.")
    return question
