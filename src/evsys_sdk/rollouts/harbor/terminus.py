"""Harbor's Terminus-2 agent with our policy as its model, called in this process."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse, OutputLengthExceededError
from harbor.models.metric import UsageInfo

from ..rollout import TruncatedError, text_of
from .attempt import Attempt

_UNKNOWN_CONTEXT = 1_000_000


class PolicyLLM(BaseLLM):
    """The policy as a Harbor language model; tokens are recorded on our side."""

    def __init__(self, attempt: Attempt, *, summarizes: bool) -> None:
        super().__init__()
        self._attempt = attempt
        self._summarizes = summarizes

    async def call(self, prompt: str, message_history: list[dict[str, Any]] | None = None, **_: Any) -> LLMResponse:
        try:
            turn = await self._attempt.recorder.act([*(message_history or ()), {"role": "user", "content": prompt}])
        except TruncatedError as error:
            if self._summarizes:
                raise ContextLengthExceededError(str(error)) from error
            raise
        content = text_of(turn.message)
        if turn.stop_reason == "length":
            raise OutputLengthExceededError("the answer was cut off at max_tokens", truncated_response=content)
        usage = UsageInfo(
            prompt_tokens=turn.input_tokens,
            completion_tokens=turn.output_tokens,
            cache_tokens=0,
            cost_usd=turn.cost_usd or 0.0,
        )
        return LLMResponse(content=content, usage=usage)

    def get_model_context_limit(self) -> int:
        return getattr(self._attempt.request.policy, "context_length", _UNKNOWN_CONTEXT)

    def get_model_output_limit(self) -> int | None:
        params = getattr(self._attempt.request.policy, "params", None)
        return getattr(params, "max_tokens", None)


def with_policy(terminus: type[Any], attempt: Attempt) -> type[Any]:
    """The agent class with our policy as its model, which Harbor has no public way to set."""

    class PolicyTerminus(terminus):
        def _init_llm(self, *_: Any, **__: Any) -> BaseLLM:
            return PolicyLLM(attempt, summarizes=self.options.enable_summarize)

    return PolicyTerminus
