"""The requests of OpenAI's API. What would change the answer and cannot be done is refused; what would not is taken."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ...errors import show
from ...eval.answers.tool_call import calls_in_text
from ..answer import Refusal

type Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]

_IGNORED = frozenset(
    (
        "store", "metadata", "service_tier", "prompt_cache_key", "parallel_tool_calls", "reasoning_effort", "verbosity",
        "prompt_cache_retention", "reasoning", "best_of",
    )
)  # fmt: skip
"""Fields without effect on what this server answers."""


class OpenAIRefusal(Refusal):
    """A request that is not served, as OpenAI's clients read it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(status, message, retry_after_s=retry_after_s)
        self.param, self.code = param, code


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = Field(min_length=1, max_length=500)
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    temperature: float | None = Field(default=1.0, ge=0, le=100)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    n: int | None = Field(default=1, ge=1, le=128)
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    user: Any = None
    safety_identifier: Any = None

    @property
    def asker(self) -> str:
        """For whom it is asked, where the client says so."""
        return str(self.safety_identifier or self.user or "")[:200]

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def samples(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    def check(self) -> None:
        """Refuse what would change the answer and cannot be done."""
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            if getattr(self, name):
                raise OpenAIRefusal(
                    400, f"{name} is not supported here. Leave it out.", param=name, code="unsupported_value"
                )


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None

    @property
    def longest(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def check(self) -> None:
        super().check()
        if (self.response_format or {}).get("type", "text") != "text":
            raise OpenAIRefusal(400, "only response_format text is supported here.", param="response_format")
        if self.tool_choice not in (None, "auto", "none"):
            raise OpenAIRefusal(400, "a tool cannot be forced here. Use tool_choice auto or none.", param="tool_choice")
        if self.modalities not in (None, ["text"]):
            raise OpenAIRefusal(400, "only text is answered here.", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise OpenAIRefusal(400, "top_logprobs needs logprobs: true.", param="top_logprobs")


class CompletionRequest(_Request):
    """`POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0)
    echo: Literal[False] | None = False
    suffix: None = None

    @property
    def longest(self) -> int | None:
        return self.max_tokens


class GenerateParams(BaseModel):
    """How tokens are drawn, for clients that train."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    n: int = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    seed: int | None = None
    stop: Stop | list[Stop] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = Field(default=None, ge=0)
    """Those of the drawn tokens are always in the answer."""


class GenerateRequest(BaseModel):
    """`POST /inference/v1/generate`: token ids in, token ids and their log-probabilities out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(min_length=1, max_length=500)
    token_ids: list[int] = Field(min_length=1)
    sampling_params: GenerateParams = GenerateParams()
    request_id: str | None = Field(default=None, max_length=160)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request is."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise OpenAIRefusal(400, "the body is not JSON.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise OpenAIRefusal(400, "the body must be a JSON object.")
    return cast(dict[str, Any], fields)


def read[R: BaseModel](kind: type[R], body: bytes) -> R:
    """A request, or a refusal that names the field."""
    given = read_object(body)
    try:
        found = kind.model_validate({key: value for key, value in given.items() if key not in _IGNORED})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"][:1])
        code = "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
        raise OpenAIRefusal(400, f"{param or 'the body'}: {first['msg']}.", param=param or None, code=code) from None
    if isinstance(found, _Request):
        found.check()
    return found


# Tools in a chat without a template for them: told in the system message, called by a tag in the text.

TAG: Final = "tool_call"
OPENING: Final = f"<{TAG}>"


def tell_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with a system message that lists the tools and says how to call one."""
    lines: list[str] = []
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or "name" not in function:
            raise OpenAIRefusal(
                400, f"tools[{at}] is {show(tool)}; give type function and a function with a name.", param="tools"
            )
        lines.append(json.dumps(function, ensure_ascii=False))
    how = f'Call a tool by writing <{TAG}>{{"name": "...", "arguments": {{...}}}}</{TAG}>.'
    told = "\n".join(["Tools:", *lines, how])
    first = dict(messages[0]) if messages else {}
    if first.get("role") == "system":
        first["content"] = f"{first.get('content') or ''}\n\n{told}"
        return [first, *map(dict, messages[1:])]
    return [{"role": "system", "content": told}, *map(dict, messages)]


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text before the first call, and the calls; a call that cannot be read stays text."""
    before, tag, _ = text.partition(OPENING)
    calls = calls_in_text(text, tag=TAG) if tag else []
    if not calls or any(not call.name for call in calls):
        return text, []
    return before.rstrip(), [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in calls
    ]


def safe_length(text: str, holdbacks: Sequence[str]) -> int:
    """How much of a growing text can be shown: not the beginning of what may turn out to be a call or a stop."""
    shown = len(text)
    for mark in holdbacks:
        if (at := text.find(mark)) >= 0:
            shown = min(shown, at)
            continue
        for size in range(min(len(mark) - 1, len(text)), 0, -1):
            if text.endswith(mark[:size]):
                shown = min(shown, len(text) - size)
                break
    while shown and text[shown - 1] == "\ufffd":  # a character whose bytes have not all come
        shown -= 1
    return shown
