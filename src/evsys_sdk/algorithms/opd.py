"""On-policy distillation: learn from a teacher's distribution over the student's answers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..backends.client import SamplingClient
from ..errors import DataError
from ..protocols import Row
from ..rollouts.rollout import Message
from .distillation import DistillationAlgorithm, DistillationConfig
from .on_policy import prompt_of


class OPD(DistillationAlgorithm):
    """On-policy distillation from a teacher with the same tokenizer."""

    name: ClassVar[str] = "opd"
    teacher_is = "the teacher, and training with it"

    class Config(DistillationConfig):
        """Parameters of `opd`."""

        teacher: str = Field(min_length=1)
        """Checkpoint or sampler of the teacher, by the backend's name."""

    cfg: Config

    async def setup(self) -> None:
        await super().setup()
        self.questions = [_question(row, number) for number, row in enumerate(self.rows, start=1)]
        self._teacher = await self.client.open_sampler(self.cfg.teacher)

    async def teacher_at(self, step: int) -> SamplingClient:
        return self._teacher


def _question(row: Row, number: int) -> list[Message]:
    """The student's prompt: a task's opening, or a conversation up to its last answer."""
    question = prompt_of(row)
    if question[-1]["role"] == "assistant":
        raise DataError(f"row {number} has an answer but no question. Add the message it answers.")
    return question
