"""OpenAI's older completions API: texts or tokens in, continuations out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from .chat_completions import OpenAIExchange, OpenAIRequest, finite
from .exchange import Reply, RequestRefused, TextQuery, TokenScore


class CompletionRequest(OpenAIRequest):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=16, ge=0)
    logprobs: int | None = Field(default=None, ge=0)
    echo: bool | None = False
    suffix: None = None

    def query(self) -> TextQuery:
        prompt: Any = self.prompt
        is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        prompts: list[str | list[int]] = list[Any]([prompt] if is_one else prompt)
        if not prompts or not all(prompts):
            raise RequestRefused("the prompt is empty.", param="prompt")
        if not self.echo and self.max_tokens == 0:
            raise RequestRefused("max_tokens is 0, which needs echo: true.", param="max_tokens", code="invalid_value")
        if self.echo and self.stream:
            raise RequestRefused("echo cannot be streamed here. Set stream or echo to false.", param="echo")
        return TextQuery(
            **self.common(),
            prompts=prompts,
            max_tokens=self.max_tokens,
            logprobs=self.logprobs,
            echo=bool(self.echo),
        )


class TextCompletion(OpenAIExchange[TextQuery]):
    """One request of `POST /v1/completions`; each prompt has `samples` consecutive answers."""

    path: ClassVar[str] = "/v1/completions"
    prefix: ClassVar[str] = "cmpl-"
    kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"
    Request = CompletionRequest

    def _choice(self, at: int, reply: Reply) -> dict[str, Any]:
        logprobs = self._logprobs(reply.scores)
        return {"index": at, "text": reply.text, "logprobs": logprobs, "finish_reason": reply.reason}

    def start(self, prompt_tokens: int) -> list[bytes]:
        return []

    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        logprobs = self._logprobs(scores) if scores else None
        return [self._chunk([{"index": at, "text": new, "logprobs": logprobs, "finish_reason": None}])]

    def end(self, at: int, reply: Reply) -> list[bytes]:
        return [self._chunk([{"index": at, "text": "", "logprobs": None, "finish_reason": reply.reason}])]

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        if self.query.logprobs is None:
            return None
        offsets, at = list[int](), 0
        for score in scores:
            offsets.append(at)
            at += len(score.text)
        tops = [
            None if score.logprob is None else {text: finite(value) for text, value in reversed(score.top)}
            for score in scores
        ]
        return {
            "tokens": [score.text for score in scores],
            "token_logprobs": [None if score.logprob is None else finite(score.logprob) for score in scores],
            "top_logprobs": tops if self.query.logprobs else None,
            "text_offset": offsets,
        }
