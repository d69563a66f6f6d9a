"""OpenAI's chat completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, StringConstraints

from ...config.base import Strict
from ...data.shapes import is_object
from ...errors import show
from .exchange import (
    ChatApiRequest,
    ChatQuery,
    Exchange,
    Query,
    Reply,
    RequestRefused,
    SamplingRequest,
    TokenScore,
    error_type,
    event,
    function_tool,
    read_choice,
    read_format,
)

type Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
DONE: Final = b"data: [DONE]\n\n"


class StreamOptions(Strict):
    """What a stream contains besides the answer."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class OpenAIRequest(SamplingRequest):
    """Fields shared by chat completions and completions."""

    ignored: ClassVar[frozenset[str]] = frozenset(("store", "service_tier", "prompt_cache_key"))

    stream_options: StreamOptions | None = None
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    n: int | None = Field(default=None, ge=1, le=128)
    best_of: int | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Stop | list[Stop] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: Any = None
    safety_identifier: Any = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def common(self) -> dict[str, Any]:
        """The fields of a `Query`; refuses unsupported fields that would change the answer."""
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            if getattr(self, name):
                raise _unsupported(name)
        if self.best_of not in (None, self.n or 1):
            raise _unsupported("best_of")
        if self.stream_options is not None and not self.stream:
            raise RequestRefused("stream_options needs stream: true.", param="stream_options")
        return super().common() | {
            "samples": self.n or 1,
            "top_k": self.top_k or -1,
            "seed": self.seed,
            "stops": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
        }


def _unsupported(name: str) -> RequestRefused:
    return RequestRefused(f"{name} is not supported here. Leave it out.", param=name, code="unsupported_value")


class ChatRequest(OpenAIRequest, ChatApiRequest):
    """The body of `POST /v1/chat/completions`."""

    ignored: ClassVar[frozenset[str]] = OpenAIRequest.ignored | {
        "prompt_cache_retention", "reasoning", "reasoning_effort", "verbosity"
    }  # fmt: skip

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None

    def query(self) -> ChatQuery:
        if self.modalities not in (None, ["text"]):
            raise RequestRefused("modalities must be text; no others are supported.", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise RequestRefused("top_logprobs needs logprobs: true.", param="top_logprobs")
        return self.read_chat(
            *read_choice(self.tool_choice, "function"),
            messages=[_clean(message, f"messages[{at}]") for at, message in enumerate(self.messages)],
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            parallel=self.parallel_tool_calls is not False,
            output_schema=read_format(self.response_format, "response_format", "json_schema"),
        )

    def _tool(self, tool: dict[str, Any], where: str) -> dict[str, Any]:
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not is_object(function):
            raise RequestRefused(
                f"{where} is {show(tool)}; give type function and a function with a name.", param="tools"
            )
        return function_tool(function, "parameters", where)


def _clean(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message without null fields. vLLM and OpenRouter name thinking `reasoning`."""
    fields = {key: value for key, value in message.items() if value is not None}
    if "audio" in fields:
        raise RequestRefused(f"{where} has audio, but only text is supported. Remove it.", param="messages")
    return {"reasoning_content": fields.pop("reasoning"), **fields} if "reasoning" in fields else fields


class OpenAIExchange[Q: Query](Exchange[Q]):
    """Code shared by chat completions and completions."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    @property
    def _with_usage(self) -> bool:
        return self._request is not None and self._request.wants_usage

    @classmethod
    def error(cls, status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        error = {"message": message, "type": error_type(status, "server_error"), "param": param, "code": code}
        return {"error": error}

    def answer(self, replies: Sequence[Reply], prompt_tokens: int) -> dict[str, Any]:
        choices = [self._choice(at, reply) for at, reply in enumerate(replies)]
        return self._wrap(self.kind, choices, usage=_usage(prompt_tokens, sum(reply.tokens for reply in replies)))

    def finish(self, prompt_tokens: int, sampled_tokens: int) -> list[bytes]:
        usage = [self._chunk([], usage=_usage(prompt_tokens, sampled_tokens))] if self._with_usage else []
        return [*usage, DONE]

    def _choice(self, at: int, reply: Reply) -> dict[str, Any]:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        if choices and self._with_usage:
            more["usage"] = None
        return event(self._wrap(self.chunk_kind, choices, **more))

    def _wrap(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": None, "choices": choices, **more}


class ChatCompletion(OpenAIExchange[ChatQuery]):
    """One request of `POST /v1/chat/completions`."""

    path: ClassVar[str] = "/v1/chat/completions"
    prefix: ClassVar[str] = "chatcmpl-"
    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"
    Request = ChatRequest

    def _choice(self, at: int, reply: Reply) -> dict[str, Any]:
        content = reply.text if reply.text or not reply.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        if reply.calls:
            message["tool_calls"] = [call.to_dict() for call in reply.calls]
        logprobs = self._logprobs(reply.scores)
        return {"index": at, "message": message, "logprobs": logprobs, "finish_reason": reply.reason}

    def start(self, prompt_tokens: int) -> list[bytes]:
        opening = {"role": "assistant", "content": "", "refusal": None}
        return [self._delta(at, opening) for at in range(self.query.samples)]

    def thinking(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        return [self._delta(at, {"reasoning_content": new}, logprobs=self._logprobs(scores) if scores else None)]

    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        return [self._delta(at, {"content": new}, logprobs=self._logprobs(scores) if scores else None)]

    def end(self, at: int, reply: Reply) -> list[bytes]:
        parts: list[bytes] = []
        for number, call in enumerate(call.to_dict() for call in reply.calls):
            function = call["function"]
            opening = {"index": number, **call, "function": {"name": function["name"], "arguments": ""}}
            rest = {"index": number, "function": {"arguments": function["arguments"]}}
            parts += [self._delta(at, {"tool_calls": [opening]}), self._delta(at, {"tool_calls": [rest]})]
        return [*parts, self._delta(at, {}, reply.reason)]

    def _delta(
        self, at: int, delta: dict[str, Any], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        return self._chunk([{"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": reason}])

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        if self.query.logprobs is None:
            return None
        return {"content": [describe_score(score) for score in scores], "refusal": None}


def describe_score(score: TokenScore) -> dict[str, Any]:
    """A token with its log-probability and alternatives, in the form of OpenAI's newer APIs."""
    best = [_describe(text, value) for text, value in score.top]
    return {**_describe(score.text, score.logprob or 0.0), "top_logprobs": best}


def _describe(text: str, logprob: float) -> dict[str, Any]:
    # The text of a partial character does not determine its bytes.
    return {"token": text, "logprob": finite(logprob), "bytes": None if "\ufffd" in text else list(text.encode())}


def finite(value: float) -> float:
    """Replace minus infinity, which JSON lacks, by OpenAI's value for impossible tokens."""
    return value if math.isfinite(value) else -9999.0


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
