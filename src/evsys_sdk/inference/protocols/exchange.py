"""What is common to all APIs: a request as a `Query`, a model's answer as a `Reply`, and an `Exchange` of the two."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...data.shapes import is_object
from ...data.types import Message
from ...errors import EvsysError, show
from ..conversation import split_answer, split_growing
from ..messages import FunctionCall


class RequestRefused(EvsysError, ValueError):
    """A request that is not answered; `param` names the field, `code` is a word for programs."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What every request says."""

    model: str
    stream: bool = False
    samples: int = 1
    max_tokens: int | None = None
    """Longest answer; None leaves it to the server."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many alternatives to report for each token; None reports no log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuery(Query):
    """A conversation to continue, in OpenAI's form: see `inference/messages.py`."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Functions that may be called, `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    forced: tuple[str, ...] = ()
    """Names of tools of which one must be called; empty where none must."""
    parallel: bool = True
    """Whether one answer may hold several calls."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the answer; None for free text."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the client notes about the request; it has no effect on the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuery(Query):
    """Texts or tokens to continue."""

    prompts: list[str | list[int]]
    echo: bool = False
    """Whether the answer repeats the prompt, with its log-probabilities."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token and how probable it was."""

    text: str
    logprob: float | None
    """None for the first token of a text, which nothing precedes."""
    top: Sequence[tuple[str, float]] = ()
    """The most probable tokens in its place."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model."""

    text: str
    reason: Literal["stop", "length", "tool_calls"]
    tokens: int
    """That were sampled."""
    calls: Sequence[FunctionCall] = ()
    stop: str | None = None
    """The stop sequence that ended it."""
    scores: Sequence[TokenScore] = ()
    thinking: str = ""
    """What the model thought aloud before its answer."""


class ApiRequest(BaseModel):
    """The JSON of a request. Unknown fields are refused; fields in `ignored` have no effect on the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    ignored: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Check a request; raises `RequestRefused`, which names the field."""
        try:
            return cls.model_validate({key: value for key, value in fields.items() if key not in cls.ignored})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            param = ".".join(str(part) for part in first["loc"][:1])
            code = "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
            raise RequestRefused(f"{param or 'the body'}: {first['msg']}.", param=param or None, code=code) from None


class SamplingRequest(ApiRequest):
    """What requests for an answer have in common, whichever API they are in."""

    model: str = Field(min_length=1, max_length=500)
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: dict[str, Any] | None = None

    def common(self) -> dict[str, Any]:
        """These fields as those of a `Query`."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return {
            "model": self.model,
            "stream": bool(self.stream),
            "temperature": temperature,
            "top_p": self.top_p or 1.0,
        }


class Exchange[Q: Query](ABC):
    """One request, and how its answer is written: whole by `answer`, as a stream by the others in their order."""

    path: ClassVar[str]
    prefix: ClassVar[str]
    """Of ids."""

    def __init__(self, query: Q) -> None:
        self.query = query
        self.model = query.model
        """The name that answers carry; a server that resolves names may set another."""
        self.id = f"{self.prefix}{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._sent: dict[int, tuple[str, str]] = {}
        """Thinking and text of each answer of the stream so far."""

    @classmethod
    @abstractmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Read a request; raises `RequestRefused`."""

    @abstractmethod
    def answer(self, replies: Sequence[Reply], prompt_tokens: int) -> dict[str, Any]:
        """The body of a whole answer."""

    @abstractmethod
    def start(self, prompt_tokens: int) -> list[bytes]:
        """The events that open a stream."""

    def thinking(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """Answer number `at` grows by some thinking."""
        return []

    @abstractmethod
    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """Answer number `at` grows by some text."""

    @abstractmethod
    def end(self, at: int, reply: Reply) -> list[bytes]:
        """An answer whose text has been sent ends: its tool calls, and why it ended."""

    @abstractmethod
    def finish(self, prompt_tokens: int, sampled_tokens: int) -> list[bytes]:
        """All answers have ended."""

    @classmethod
    @abstractmethod
    def error(cls, status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        """The body of an error."""

    def fail(self, status: int, message: str) -> bytes:
        """The event of an error in a stream whose status has been sent."""
        return event(self.error(status, message))

    def grow(self, at: int, shown: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events by which answer number `at` becomes a text that may continue."""
        thinking, text = split_growing(shown) if isinstance(self.query, ChatQuery) else ("", shown)
        return self._grow(at, thinking, text, scores)

    def close(self, at: int, reply: Reply, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events by which answer number `at` becomes the whole; `scores` are those that were not sent."""
        return [*self._grow(at, reply.thinking, reply.text, scores), *self.end(at, reply)]

    def replay(self, replies: Sequence[Reply], prompt_tokens: int) -> list[bytes]:
        """Whole answers as the events of a stream."""
        events = self.start(prompt_tokens)
        for at, reply in enumerate(replies):
            events += self.close(at, reply, reply.scores)
        return [*events, *self.finish(prompt_tokens, sum(reply.tokens for reply in replies))]

    def _grow(self, at: int, thinking: str, text: str, scores: Sequence[TokenScore]) -> list[bytes]:
        thought, said = self._sent.get(at, ("", ""))
        # Later tokens may change how earlier ones read, and what was sent cannot be taken back.
        more = thinking[len(thought) :] if thinking.startswith(thought) else ""
        new = text[len(said) :] if text.startswith(said) else ""
        self._sent[at] = thought + more, said + new
        parts = self.thinking(at, more, () if new else scores) if more else []
        return [*parts, *(self.text(at, new, scores) if new or (scores and not more) else [])]


def chat_reply(
    text: str,
    reason: Literal["stop", "length", "tool_calls"],
    tokens: int,
    calls: Sequence[FunctionCall] = (),
    stop: str | None = None,
    scores: Sequence[TokenScore] = (),
) -> Reply:
    """The reply to a conversation, with thinking split from the answer."""
    thinking, answer = split_answer(text)
    return Reply(answer, reason, tokens, calls, stop, scores, thinking)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request is."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestRefused("the body is not JSON.", code="invalid_json") from None
    if not is_object(fields):
        raise RequestRefused("the body must be a JSON object.")
    return fields


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    data = b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    return f"event: {name}\n".encode() + data if name else data


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_type(status: int, otherwise: str) -> str:
    """What OpenAI and Anthropic call an error of a status; `otherwise` names those of a server."""
    return _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else otherwise)


def function_tool(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    if not isinstance(name, str) or not name:
        raise RequestRefused(f"{where} has no name (got {show(name)}). Name the function.", param="tools")
    if parameters is not None and not is_object(parameters):
        raise RequestRefused(f"{where}: its parameters are {show(parameters)}, not a JSON schema.", param="tools")
    described = {"description": str(description)} if description else {}
    function = {"name": name, **described, "parameters": parameters or {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of tools in OpenAI's form."""
    return tuple(tool["function"]["name"] for tool in tools)


def choose_tools(
    tools: list[dict[str, Any]], mode: str, names: Sequence[str] | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The tools that are offered and those of which one is forced. `mode` is auto, none or required."""
    if names is not None:
        if unknown := [name for name in names if name not in tool_names(tools)]:
            known = ", ".join(tool_names(tools)) or "none"
            raise RequestRefused(
                f"tool_choice names {show(unknown[0])}, which is not among the tools ({known}).", param="tool_choice"
            )
        tools = [tool for tool in tools if tool["function"]["name"] in names]
    if mode not in ("auto", "none", "required"):
        raise RequestRefused(f"tool_choice is {show(mode)}. Use auto, none, required or a tool.", param="tool_choice")
    if mode == "required" and not tools:
        raise RequestRefused("tool_choice requires a call, and there are no tools. Add tools.", param="tool_choice")
    if mode == "none":
        return [], ()
    return tools, tool_names(tools) if mode == "required" else ()


def mapping(value: Any, where: str, param: str | None = None) -> dict[str, Any]:
    """A JSON object; anything else is refused."""
    if not is_object(value):
        raise RequestRefused(f"{where} is {show(value)}; it must be an object.", param=param or where.partition("[")[0])
    return value


def read_schema(schema: Any, where: str) -> dict[str, Any]:
    """The JSON schema of an answer."""
    return mapping(schema, where, where.partition(".")[0])
