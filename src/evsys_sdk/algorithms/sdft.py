"""Self-distillation fine-tuning: learn from demonstrations while staying on-policy.

The student answers without the demonstration. The teacher is the same model with the demonstration in its prompt; its
distribution over the student's answer is the target. This should forget less than `sft` does; measure it.

The teacher is the initial model or is renewed every `sync_every` steps. A moving average of the weights, as in the
literature, would need an operation that the training protocol lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..backends.client import SamplingClient
from ..config.fields import searched
from ..data import TargetFormat, detect_format, parse_rows
from ..errors import DataError
from ..inference.renderer import row_messages
from ..rollouts.rollout import Message, Turn, text_of
from .distillation import DistillationAlgorithm, DistillationConfig

_TEACHER_TEMPLATE = (
    "{question}\n\nThis is an example for a response to the question:\n{demonstration}\n\n"
    "Now answer with a response of your own."
)


class SDFT(DistillationAlgorithm):
    """Self-distillation: the model with a demonstration in its prompt teaches itself."""

    name: ClassVar[str] = "sdft"
    teacher_is = "the teacher, the model before training"

    class Config(DistillationConfig):
        """Parameters of `sdft`."""

        teacher: Literal["static", "synced"] = "static"
        """The initial model, or renewed every `sync_every` steps."""
        sync_every: int = Field(default=20, ge=1, json_schema_extra=searched(scale="log", when={"teacher": ["synced"]}))
        """Steps between updates of a synced teacher."""
        teacher_template: str = _TEACHER_TEMPLATE
        """The last user message for the teacher, with {question} and {demonstration}."""
        skip_tokens: int = Field(default=0, ge=0)
        """Number of initial tokens of each answer without loss."""

        @model_validator(mode="after")
        def _shows_the_demonstration(self) -> Self:
            for name in ("{question}", "{demonstration}"):
                if name not in self.teacher_template:
                    raise ValueError(
                        f"teacher_template must contain {name}; without it the teacher equals the student."
                    )
            return self

    cfg: Config

    async def setup(self) -> None:
        await super().setup()
        pairs = [_demonstration(row, number) for number, row in enumerate(self.rows, start=1)]
        self.questions, self._demonstrations = [question for question, _ in pairs], [answer for _, answer in pairs]
        self._generation = 0
        self._teacher: SamplingClient | None = await self.client.sampler()
        self._teacher_ref = ""

    @property
    def skip_tokens(self) -> int:
        return self.cfg.skip_tokens

    def teacher_prompt(self, index: int, turn: Turn) -> Sequence[int]:
        return self.renderer.prompt(self._show_teacher(self.questions[index], self._demonstrations[index]))

    def _show_teacher(self, messages: Sequence[Message], demonstration: str) -> list[Message]:
        """The teacher's conversation, with the demonstration in the question."""
        parts = {"{question}": text_of(messages[-1]), "{demonstration}": demonstration}
        # In one pass, because a question may contain text that looks like a placeholder.
        text = re.sub(r"\{question\}|\{demonstration\}", lambda match: parts[match[0]], self.cfg.teacher_template)
        return [*messages[:-1], {**messages[-1], "content": text}]

    async def teacher_at(self, step: int) -> SamplingClient:
        generation = step // self.cfg.sync_every if self.cfg.teacher == "synced" else 0
        if generation != self._generation:
            # Unique across stages and killed attempts of the run.
            name = f"teacher-{self.run_dir.name}-{generation:04d}-attempt{self.services.attempt}"
            self._generation = generation
            self._teacher = await self.client.sampler(name)
            self._teacher_ref = self._teacher.ref
        elif self._teacher is None:
            self._teacher = await self.client.open_sampler(self._teacher_ref)
        return self._teacher

    def state(self) -> dict[str, Any]:
        # `setup` recreates the initial teacher; only a later one is stored.
        return {"generation": self._generation, "teacher": self._teacher_ref} if self._generation else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            self._generation, self._teacher_ref, self._teacher = state["generation"], state["teacher"], None


def _demonstration(row: dict[str, Any], number: int) -> tuple[list[Message], str]:
    """The question and the demonstrated answer of a prompt example or a conversation."""
    if detect_format(row) == "prompt_dataset":
        [example] = parse_rows([row], TargetFormat.PROMPT_DATASET)
        context: list[Message] = list(example.metadata.get("context_messages", ()))
        question = "\n".join(str(value) for value in example.inputs.values())
        return [*context, {"role": "user", "content": question}], str(example.expected)
    [chat] = parse_rows([row], TargetFormat.CHAT_MESSAGES)
    messages = row_messages(chat)
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise DataError(f"row {number} does not end with an assistant turn. Add one, or target_assistant.")
    answer = text_of(dict(messages[-1]))
    if not answer.strip():
        raise DataError(f"row {number}: the last turn has no text to train on. Fill its content, or drop the row.")
    return [dict(message) for message in messages[:-1]], answer
