"""`llm_judge`: a model reads the answer and a rubric, and gives a score.

    {kind: llm_judge, judge_model: claude-sonnet-4-5, rubric: "Is the tone friendly?"}
    {fn_name: llm_judge, params: {judge: {kind: openai, params: {model: gpt-4.1}}, rubric: "...", highest: 5}}

A reply without a score on the scale is asked for again and is then an error; it never counts as a low score.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from ...config.base import Strict
from ...config.specs import InferenceSpec
from ...data.chat import text_of
from ...data.template import fields_of
from ...data.types import Message
from ...errors import EvalError, closest, show
from ...protocols import VerificationResult
from ..answer import without_thinking
from ..judging import PLACEHOLDERS, TEMPLATE, info_of, judge_client, judge_prompt, judge_spec, read_score
from ..verifier import BaseVerifier

if TYPE_CHECKING:
    from ...inference.client import Completion
    from ..verifier import Retry


class LLMJudgeParams(Strict):
    """Who judges, by what, and on which scale."""

    rubric: str = Field(min_length=1)
    """What a good answer is."""
    judge: InferenceSpec | None = None
    """Inference client that asks the judge; or else `judge_model`."""
    judge_model: str | None = Field(default=None, min_length=1)
    """Name of the judge, where its provider can be told from it; or `kind:model`."""
    lowest: float = 0.0
    """Worst score of the scale; earns the reward 0."""
    highest: float = 10.0
    """Best score of the scale; earns the reward 1."""
    samples: int = Field(default=1, ge=1, le=64)
    """How many judgements are averaged; with several, their agreement is reported too."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Randomness of the judge; several samples need some."""
    max_tokens: int = Field(default=1024, ge=1)
    """Longest reply."""
    attempts: int = Field(default=3, ge=1, le=10)
    """How often a reply without a readable score is asked for before that is an error."""
    conversation: bool = False
    """Whether the judge reads the whole conversation instead of the last answer."""
    ignore_thinking: bool = True
    """Whether reasoning in <think>…</think> is kept from the judge."""
    template: str | None = None
    """Question of your own: {rubric}, {prompt}, {completion}, {reference}, {expected}, {lowest}, {highest}, {mark}."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.judge is None) == (self.judge_model is None):
            raise ValueError("a judge is named by 'judge' or by 'judge_model'. Give one of the two.")
        if self.lowest >= self.highest:
            raise ValueError("the scale is empty: 'lowest' is not below 'highest'. Correct one of them.")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("several samples at temperature 0 are copies of one. Raise 'temperature', e.g. to 1.")
        fields = fields_of(self.template or TEMPLATE)
        for field in fields:
            if field not in PLACEHOLDERS:
                guess = closest(field, PLACEHOLDERS)
                hint = f"Did you mean '{guess}'?" if guess else f"There are: {', '.join(PLACEHOLDERS)}."
                raise ValueError(f"the template has the unknown placeholder '{field}'. {hint}")
        if not {"rubric", "completion"} <= set(fields):
            raise ValueError("the template shows the judge no {rubric} or no {completion}. Add what is missing.")
        return self


class LLMJudge(BaseVerifier[LLMJudgeParams]):
    """The score that a judge model gives by a rubric, as a reward from 0 to 1."""

    name: ClassVar[str] = "llm_judge"
    Config = LLMJudgeParams

    async def verify(
        self, *, prompt: str, completion: str, target: Any, messages: list[Message], retry: Retry
    ) -> VerificationResult:
        """Ask the judge until there are as many scores as wanted."""
        question = judge_prompt(
            self.cfg.template or TEMPLATE,
            rubric=self.cfg.rubric,
            prompt=prompt,
            completion=self._shown(completion, messages),
            expected=target,
            lowest=self.cfg.lowest,
            highest=self.cfg.highest,
        )
        scores: list[float] = []
        replies: list[Completion] = []
        for _ in range(self.cfg.attempts):
            fresh = await self._ask(question, self.cfg.samples - len(scores), retry)
            replies += fresh
            read = (read_score(one.text, lowest=self.cfg.lowest, highest=self.cfg.highest) for one in fresh)
            scores += [score for score in read if score is not None]
            if len(scores) == self.cfg.samples:
                return self._result(scores, replies)
        scale = f"{self.cfg.lowest:g} to {self.cfg.highest:g}"
        raise EvalError(
            f"the judge gave no score from {scale} in {len(replies)} replies; the last was {show(replies[-1].text)}. "
            "Ask for <score>…</score> in the rubric or template, or raise max_tokens."
        )

    async def _ask(self, question: str, n: int, retry: Retry) -> list[Completion]:
        client = judge_client(self.cfg.judge or judge_spec(self.cfg.judge_model or ""))
        messages: list[Message] = [{"role": "user", "content": question}]
        return await retry(
            lambda: client.complete(messages, max_tokens=self.cfg.max_tokens, temperature=self.cfg.temperature, n=n)
        )

    def _shown(self, completion: str, messages: list[Message]) -> str:
        """What the judge reads of the policy's work."""
        clean = without_thinking if self.cfg.ignore_thinking else str
        if not self.cfg.conversation or not messages:
            return clean(completion).strip()
        return "\n\n".join(f"{message.get('role')}: {clean(_all_text(message))}" for message in messages)

    def _result(self, scores: list[float], replies: list[Completion]) -> VerificationResult:
        reward = (statistics.fmean(scores) - self.cfg.lowest) / (self.cfg.highest - self.cfg.lowest)
        costs = [reply.cost_usd for reply in replies]
        total = None if None in costs else sum(cost for cost in costs if cost is not None)
        read = sum(reply.usage.input_tokens or 0 for reply in replies)
        usage = {"input_tokens": read, "output_tokens": sum(reply.usage.output_tokens or 0 for reply in replies)}
        said = [reply.text for reply in replies]
        return VerificationResult(reward, {**info_of(scores, total), "usage": usage, "replies": said})


def _all_text(message: Message) -> str:
    """The words of a message and the tools it calls."""
    calls = message.get("tool_calls")
    return text_of(message.get("content")) + (f"\n[calls {calls}]" if calls else "")
