"""Classes shared by all APIs: a request as a `Query`, an answer as a `Reply`, and an `Exchange` of the two."""

from __future__ import annotations

import json
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Never, Self, cast

from pydantic import Field, ValidationError

from ...config.base import Strict
from ...config.checks.problems import problems_in
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ...errors import EvsysError, show
from ..conversation import split_answer, split_growing
from ..messages import FunctionCall


class RequestRefused(EvsysError, ValueError):
    """A refused request; `param` names the field, `code` is machine-readable."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Fields of every request."""

    model: str
    stream: bool = False
    samples: int = 1
    max_tokens: int | None = None
    """Maximum answer length; None uses the server's default."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    """Number of alternatives to report per token; None reports no log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuery(Query):
    """A conversation to continue, in OpenAI's form: see `inference/messages.py`."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Functions that may be called, `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    forced: tuple[str, ...] = ()
    """Names of tools of which one must be called; empty if no call is required."""
    parallel: bool = True
    """Whether one answer may have several calls."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the answer; None for free text."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """The client's notes about the request; no effect on the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuery(Query):
    """Texts or tokens to continue."""

    prompts: list[str | list[int]]
    echo: bool = False
    """Whether the answer repeats the prompt, with its log-probabilities."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability."""

    text: str
    logprob: float | None
    """None for the first token of a text, which has no context."""
    top: Sequence[tuple[str, float]] = ()
    """The most probable tokens at its position."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model."""

    text: str
    reason: Literal["stop", "length", "tool_calls"]
    tokens: int
    """Number of sampled tokens."""
    calls: Sequence[FunctionCall] = ()
    stop: str | None = None
    """The stop sequence that ended it."""
    scores: Sequence[TokenScore] = ()
    thinking: str = ""
    """The model's thinking before its answer."""


class SamplingRequest(Strict):
    """The JSON of a request. Unknown fields are refused; those in `ignored` have no effect."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    model: str = Field(min_length=1, max_length=500)
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: dict[str, Any] | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Validate a request; raises `RequestRefused`, which names the field."""
        known_fields = {key: value for key, value in fields.items() if key not in cls.ignored}
        try:
            return cls.model_validate(known_fields)
        except ValidationError as error:
            problem = problems_in(error, model=cls, data=known_fields)[0]
            code = "unknown_parameter" if problem.message.startswith("unknown key") else "invalid_value"
            raise RequestRefused(str(problem), param=re.split(r"[.\[]", problem.path)[0] or None, code=code) from None

    @abstractmethod
    def query(self) -> Query:
        """The query of this request; refuses unsupported features."""

    def common(self) -> dict[str, Any]:
        """The fields of a `Query`."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return {
            "model": self.model,
            "stream": bool(self.stream),
            "temperature": temperature,
            "top_p": self.top_p or 1.0,
        }


class ChatApiRequest(SamplingRequest):
    """Fields shared by requests to continue a conversation."""

    tools: list[dict[str, Any]] | None = None

    def read_chat(self, mode: str, names: Sequence[str] | None, **more: Any) -> ChatQuery:
        """The query, with the tools selected by `mode` (auto, none or required) and `names`."""
        converted = (self._tool(tool, f"tools[{at}]") for at, tool in enumerate(self.tools or ()))
        tools, forced = choose_tools([tool for tool in converted if tool], mode, names)
        return ChatQuery(**self.common(), tools=tools, forced=forced, metadata=self.metadata or {}, **more)

    @abstractmethod
    def _tool(self, tool: dict[str, Any], where: str) -> dict[str, Any] | None:
        """A tool in OpenAI's form; None for one that runs only on its provider's servers."""


class Exchange[Q: Query](ABC):
    """One request and the format of its response: complete from `answer`, or streamed by the other methods in order."""

    path: ClassVar[str]
    prefix: ClassVar[str]
    """Prefix of ids."""
    Request: ClassVar[type[SamplingRequest]]

    def __init__(self, query: Q, request: Any = None) -> None:
        self.query = query
        self._request = request
        self.model = query.model
        """Model name in responses; a server that resolves names may change it."""
        self.id = f"{self.prefix}{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._sent: dict[int, tuple[str, str]] = {}
        """Thinking and text sent so far, by answer number."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Parse a request; raises `RequestRefused`."""
        request = cls.Request.read(fields)
        return cls(cast(Q, request.query()), request)

    @abstractmethod
    def answer(self, replies: Sequence[Reply], prompt_tokens: int) -> dict[str, Any]:
        """The body of a complete response."""

    @abstractmethod
    def start(self, prompt_tokens: int) -> list[bytes]:
        """The opening events of a stream."""

    def thinking(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events that append thinking to answer number `at`."""
        return []

    @abstractmethod
    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events that append text to answer number `at`."""

    @abstractmethod
    def end(self, at: int, reply: Reply) -> list[bytes]:
        """The closing events of an answer whose text has been sent: tool calls and finish reason."""

    @abstractmethod
    def finish(self, prompt_tokens: int, sampled_tokens: int) -> list[bytes]:
        """The events after all answers have ended."""

    @classmethod
    @abstractmethod
    def error(cls, status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        """The body of an error."""

    def fail(self, status: int, message: str) -> bytes:
        """An error event in a stream whose status has already been sent."""
        return event(self.error(status, message))

    def grow(self, at: int, shown: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events that extend answer number `at` to the partial text `shown`."""
        thinking, text = split_growing(shown) if isinstance(self.query, ChatQuery) else ("", shown)
        return self._grow(at, thinking, text, scores)

    def close(self, at: int, reply: Reply, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        """The events that complete answer number `at`; `scores` are those not yet sent."""
        return [*self._grow(at, reply.thinking, reply.text, scores), *self.end(at, reply)]

    def replay(self, replies: Sequence[Reply], prompt_tokens: int) -> list[bytes]:
        """Complete answers as the events of a stream."""
        events = self.start(prompt_tokens)
        for at, reply in enumerate(replies):
            events += self.close(at, reply, reply.scores)
        return [*events, *self.finish(prompt_tokens, sum(reply.tokens for reply in replies))]

    def _grow(self, at: int, thinking: str, text: str, scores: Sequence[TokenScore]) -> list[bytes]:
        sent_thinking, sent_text = self._sent.get(at, ("", ""))
        # Later tokens may change the decoding of earlier ones, but sent text cannot be retracted.
        new_thinking = thinking[len(sent_thinking) :] if thinking.startswith(sent_thinking) else ""
        new_text = text[len(sent_text) :] if text.startswith(sent_text) else ""
        self._sent[at] = sent_thinking + new_thinking, sent_text + new_text
        parts = self.thinking(at, new_thinking, () if new_text else scores) if new_thinking else []
        return [*parts, *(self.text(at, new_text, scores) if new_text or (scores and not new_thinking) else [])]


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
    """Parse a request body as a JSON object."""
    try:
        fields: Any = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}. Send a JSON object.", code="invalid_json") from None
    if not is_object(fields):
        raise RequestRefused(f"the body is {show(fields)}. Send a JSON object.")
    return fields


def _refuse_constant(word: str) -> Never:
    raise ValueError(f"{word} is not a JSON number")  # Python accepts it by default


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    data = b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    return f"event: {name}\n".encode() + data if name else data


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_type(status: int, otherwise: str) -> str:
    """The error type of OpenAI and Anthropic for a status; `otherwise` is that of a server error."""
    return _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else otherwise)


def function_tool(tool: Mapping[str, Any], schema_key: str, where: str) -> dict[str, Any]:
    """A tool in OpenAI's form, with its schema from `schema_key`."""
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get(schema_key)
    if not isinstance(name, str) or not name:
        raise RequestRefused(f"{where} has no name (got {show(name)}). Name the function.", param="tools")
    if parameters is not None and not is_object(parameters):
        raise RequestRefused(f"{where}: parameters is {show(parameters)}, not a JSON schema.", param="tools")
    described = {"description": text_at(description, f"{where}.description", "tools")} if description else {}
    function = {"name": name, **described, "parameters": parameters or {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of tools in OpenAI's form."""
    return tuple(tool["function"]["name"] for tool in tools)


def choose_tools(
    tools: list[dict[str, Any]], mode: str, names: Sequence[str] | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The offered tools, and the names of which one is forced. `mode` is auto, none or required."""
    if names is not None:
        if unknown := [name for name in names if name not in tool_names(tools)]:
            known = ", ".join(tool_names(tools)) or "none"
            raise RequestRefused(
                f"tool_choice names {show(unknown[0])}, which is not among the tools ({known}).", param="tool_choice"
            )
        tools = [tool for tool in tools if tool["function"]["name"] in names]
    if len(set(tool_names(tools))) < len(tools):
        raise RequestRefused(f"tools repeat a name ({', '.join(tool_names(tools))}). Rename one.", param="tools")
    if mode not in ("auto", "none", "required"):
        raise RequestRefused(f"tool_choice is {show(mode)}. Use auto, none, required or a tool.", param="tool_choice")
    if mode == "required" and not tools:
        raise RequestRefused("tool_choice requires a call, but there are no tools. Add tools.", param="tool_choice")
    if mode == "none":
        return [], ()
    return tools, tool_names(tools) if mode == "required" else ()


def read_choice(choice: Any, key: str = "") -> tuple[str, list[str] | None]:
    """Mode and names of OpenAI's `tool_choice`; `key` is the envelope of its objects."""
    if choice is None or isinstance(choice, str):
        return choice or "auto", None

    def inner(value: Any, key: str) -> dict[str, Any]:
        value = mapping(value, "tool_choice")
        return mapping(value.get(key), f"tool_choice.{key}", "tool_choice") if key else value

    if choice.get("type") != "allowed_tools":
        return "required", [str(inner(choice, key).get("name"))]
    allowed = inner(choice, key and "allowed_tools")
    tools: Any = allowed.get("tools")
    if not is_list(tools):
        raise RequestRefused(f"the allowed tools are {show(tools)}. Give a list of tools.", param="tool_choice")
    return str(allowed.get("mode", "auto")), [str(inner(tool, key).get("name")) for tool in tools]


def mapping(value: Any, where: str, param: str | None = None) -> dict[str, Any]:
    """`value` if it is a JSON object, else RequestRefused."""
    if not is_object(value):
        raise RequestRefused(f"{where} is {show(value)}; it must be an object.", param=param or where.partition("[")[0])
    return value


def text_at(value: Any, where: str, param: str) -> str:
    """`value` if it is text, else RequestRefused."""
    if not isinstance(value, str):
        raise RequestRefused(f"{where} is {show(value)}. Give text.", param=param)
    return value


def read_format(value: Any, where: str, inner: str = "") -> dict[str, Any] | None:
    """The answer's schema from `{"type": "json_schema", "schema": {...}}`, optionally nested under `inner`."""
    param = where.partition(".")[0]
    form = mapping(value or {"type": "text"}, where, param)
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            if inner:
                where = f"{where}.{inner}"
                form = mapping(form.get(inner), where, param)
            return mapping(form.get("schema"), f"{where}.schema", param)
        case other:
            raise RequestRefused(f"{where}.type is {show(other)}. Use text, json_object or json_schema.", param=param)
