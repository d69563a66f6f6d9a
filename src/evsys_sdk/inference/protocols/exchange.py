"""What is common to all APIs: a request as a `Query`, a model's answer as a `Reply`, and an `Exchange` of the two."""

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


class SamplingRequest(Strict):
    """The JSON of a request for an answer. Unknown fields are refused; those in `ignored` have no effect."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    model: str = Field(min_length=1, max_length=500)
    stream: bool | None = False
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: dict[str, Any] | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Check a request; raises `RequestRefused`, which names the field."""
        given = {key: value for key, value in fields.items() if key not in cls.ignored}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problem = problems_in(error, model=cls, data=given)[0]
            code = "unknown_parameter" if problem.message.startswith("unknown key") else "invalid_value"
            raise RequestRefused(str(problem), param=re.split(r"[.\[]", problem.path)[0] or None, code=code) from None

    @abstractmethod
    def query(self) -> Query:
        """What it asks; refuses what cannot be done."""

    def common(self) -> dict[str, Any]:
        """These fields as those of a `Query`."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return {
            "model": self.model,
            "stream": bool(self.stream),
            "temperature": temperature,
            "top_p": self.top_p or 1.0,
        }


class ChatApiRequest(SamplingRequest):
    """What requests to continue a conversation have in common."""

    tools: list[dict[str, Any]] | None = None

    def read_chat(self, mode: str, names: Sequence[str] | None, **more: Any) -> ChatQuery:
        """The query, with the tools that `mode` (auto, none or required) and `names` choose."""
        found = [tool for at, one in enumerate(self.tools or ()) if (tool := self._tool(one, f"tools[{at}]"))]
        tools, forced = choose_tools(found, mode, names)
        return ChatQuery(**self.common(), tools=tools, forced=forced, metadata=self.metadata or {}, **more)

    @abstractmethod
    def _tool(self, tool: dict[str, Any], where: str) -> dict[str, Any] | None:
        """A tool in OpenAI's form; None for one that only its provider's servers run."""


class Exchange[Q: Query](ABC):
    """One request, and how its answer is written: whole by `answer`, as a stream by the others in their order."""

    path: ClassVar[str]
    prefix: ClassVar[str]
    """Of ids."""
    Request: ClassVar[type[SamplingRequest]]

    def __init__(self, query: Q, request: Any = None) -> None:
        self.query = query
        self._request = request
        self.model = query.model
        """The name that answers carry; a server that resolves names may set another."""
        self.id = f"{self.prefix}{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._sent: dict[int, tuple[str, str]] = {}
        """Thinking and text of each answer of the stream so far."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Read a request; raises `RequestRefused`."""
        request = cls.Request.read(fields)
        return cls(cast(Q, request.query()), request)

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
        fields: Any = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}. Send a JSON object.", code="invalid_json") from None
    if not is_object(fields):
        raise RequestRefused(f"the body is {show(fields)}. Send a JSON object.")
    return fields


def _refuse_constant(word: str) -> Never:
    raise ValueError(f"{word} is no JSON number")  # Python reads it, and would write it into the answer


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    data = b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    return f"event: {name}\n".encode() + data if name else data


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_type(status: int, otherwise: str) -> str:
    """What OpenAI and Anthropic call an error of a status; `otherwise` names those of a server."""
    return _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else otherwise)


def function_tool(tool: Mapping[str, Any], schema_key: str, where: str) -> dict[str, Any]:
    """A tool in OpenAI's form; its schema is at `schema_key`."""
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get(schema_key)
    if not isinstance(name, str) or not name:
        raise RequestRefused(f"{where} has no name (got {show(name)}). Name the function.", param="tools")
    if parameters is not None and not is_object(parameters):
        raise RequestRefused(f"{where}: its parameters are {show(parameters)}, not a JSON schema.", param="tools")
    described = {"description": text_at(description, f"{where}.description", "tools")} if description else {}
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
    if len(set(tool_names(tools))) < len(tools):
        raise RequestRefused(f"tools have names twice ({', '.join(tool_names(tools))}). Rename one.", param="tools")
    if mode not in ("auto", "none", "required"):
        raise RequestRefused(f"tool_choice is {show(mode)}. Use auto, none, required or a tool.", param="tool_choice")
    if mode == "required" and not tools:
        raise RequestRefused("tool_choice requires a call, and there are no tools. Add tools.", param="tool_choice")
    if mode == "none":
        return [], ()
    return tools, tool_names(tools) if mode == "required" else ()


def read_choice(choice: Any, key: str = "") -> tuple[str, list[str] | None]:
    """Mode and names of a `tool_choice` as OpenAI's APIs have it; with `key`, what it names is one level below."""
    if choice is None or isinstance(choice, str):
        return choice or "auto", None

    def inner(given: Any, key: str) -> dict[str, Any]:
        given = mapping(given, "tool_choice")
        return mapping(given.get(key), f"tool_choice.{key}", "tool_choice") if key else given

    if choice.get("type") != "allowed_tools":
        return "required", [str(inner(choice, key).get("name"))]
    allowed = inner(choice, key and "allowed_tools")
    tools: Any = allowed.get("tools")
    if not is_list(tools):
        raise RequestRefused(f"the allowed tools are {show(tools)}. Give a list of tools.", param="tool_choice")
    return str(allowed.get("mode", "auto")), [str(inner(tool, key).get("name")) for tool in tools]


def mapping(value: Any, where: str, param: str | None = None) -> dict[str, Any]:
    """A JSON object; anything else is refused."""
    if not is_object(value):
        raise RequestRefused(f"{where} is {show(value)}; it must be an object.", param=param or where.partition("[")[0])
    return value


def text_at(value: Any, where: str, param: str) -> str:
    """A text; anything else is refused."""
    if not isinstance(value, str):
        raise RequestRefused(f"{where} is {show(value)}. Give text.", param=param)
    return value


def read_format(given: Any, where: str, inner: str = "") -> dict[str, Any] | None:
    """The schema of an answer of a form: `{"type": "json_schema", "schema": {...}}`, with `inner` one level below."""
    param = where.partition(".")[0]
    form = mapping(given or {"type": "text"}, where, param)
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
