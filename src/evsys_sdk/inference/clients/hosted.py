"""What the clients of hosted models share: keys, retries, errors and accounting.

`openai.py` only translates: a `HostedCall` into the body of a request (`_body`), the body of an answer into a `Parsed`
(`_parse`), and the body of a refusal into a `Complaint` (`_complaint`).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from ...config.base import MisplacedValue, Strict
from ...config.prices import Price, TokenUsage, list_prices
from ...data.shapes import is_object
from ...data.types import Message
from ...errors import DataError, EvsysAuthError
from ...log import get_logger
from ...redact import hide
from ..background_loop import BackgroundLoop, background_loop
from ..client import ChatClient, Completion, StopReason, check_request, cut_at_stop
from ..errors import InferenceError
from ..messages import check_conversation, check_tools
from ..retry import call_with_retry_async
from ..transport import HttpAnswer, Transport
from .refusals import Complaint, error_of

# Params that all clients of hosted models share.

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Capitals only: keys have small letters, and a key that was put here by mistake must not end up in a message."""


class HostedConfig(Strict):
    """Params of a client for a hosted model."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(min_length=1)
    """The model's name, as the provider writes it."""
    base_url: str | None = None
    """Another server that speaks the same protocol. It gets no key unless `api_key_env` names one."""
    api_key_env: str | None = None
    """Environment variable that holds the key, if it is not the provider's usual one."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time one attempt may take, from sending to the last byte."""
    connect_timeout_s: float = Field(default=20.0, gt=0)
    """Longest time to wait for a connection."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is tried before it counts as failed."""
    base_delay_s: float = Field(default=1.0, ge=0)
    """Longest wait before the second attempt; it doubles with each further one."""
    max_delay_s: float = Field(default=60.0, ge=0)
    """Longest wait between attempts, unless the server asks for more."""
    deadline_s: float = Field(default=1800.0, gt=0)
    """No new attempt begins later than this after the first one failed."""
    concurrency: int = Field(default=8, ge=1)
    """Most requests at the same time."""
    prices: dict[str, Price | list[Price]] = {}
    """Prices for a client that is used by itself; in an experiment, `budget.prices` is the place for them."""
    extra: dict[str, Any] = {}
    """Further fields of the request body as the provider documents them; null leaves a field out."""

    @model_validator(mode="after")
    def _check(self) -> HostedConfig:
        # Checked here and not field by field, because then a problem would be shown with its value: perhaps a secret.
        address = self.base_url
        if address is not None and not address.startswith(("http://", "https://")):
            raise MisplacedValue("should be an address. Begin it with https:// or http://.", "base_url")
        if address is not None and "@" in address.partition("://")[2].partition("/")[0]:
            hint = "Put the key into an environment variable and name that in api_key_env."
            raise MisplacedValue(f"should hold no user name or password. {hint}", "base_url")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            hint = "Write it in capitals, such as MY_API_KEY; never put the key itself here."
            raise MisplacedValue(f"should be the name of an environment variable. {hint}", "api_key_env")
        return self


_log = get_logger(__name__)
_STANDARD = ("", "default", "standard", "auto")
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class HostedCall:
    """One conversation to be answered once."""

    messages: list[Message]
    max_tokens: int
    temperature: float
    stop: tuple[str, ...] = ()
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a provider's answer says."""

    text: str
    message: Message
    stop_reason: StopReason
    finish: str
    usage: TokenUsage
    model: str = ""
    tier: str = ""
    """The kind of service the provider says it gave, where there are several at different prices."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the text is {self.text!r}")


@dataclass(frozen=True, slots=True)
class _Session:
    """What belongs to one event loop."""

    loop: BackgroundLoop
    transport: Transport
    places: asyncio.Semaphore


class HostedClient(ChatClient):
    """A model behind a provider's HTTP API."""

    Config: ClassVar[type[HostedConfig]]
    provider: ClassVar[str]
    address: ClassVar[str]
    """Where the provider itself serves."""
    key_variables: ClassVar[tuple[str, ...]]
    """Environment variables that may hold its key, in the order they are looked at."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.config = self.Config(**params)
        self.concurrency = self.config.concurrency
        self.base_url = (self.config.base_url or self.address).rstrip("/")
        self._variable, self._key = self._find_key()
        self.ignored: set[str] = set()
        """Request fields that the model turned out not to take, and that are no longer sent."""
        self._session: _Session | None = None

    @property
    def is_provider(self) -> bool:
        """Whether requests go to the provider itself, and not to a server that speaks its language."""
        return self.base_url == self.address

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop: Sequence[str] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        seed: int | None = None,
        n: int = 1,
    ) -> list[Completion]:
        check_request(max_tokens=max_tokens, temperature=temperature, stop=stop, n=n)
        sent = check_conversation(messages)
        call = HostedCall(sent, max_tokens, temperature, tuple(stop or ()), check_tools(tools), seed)
        # Each answer is its own request, so that each has its own tokens, cost and attempts.
        # And its own seed: with one for all of them, the answers would be the same n times.
        calls = [call if seed is None else replace(call, seed=seed + number) for number in range(n)]
        return await background_loop().call(self._all(calls))

    def close(self) -> None:
        session, self._session = self._session, None
        if session:
            session.loop.finish(session.transport.aclose())

    @abstractmethod
    def _url(self) -> str: ...
    @abstractmethod
    def _body(self, call: HostedCall) -> dict[str, Any]: ...
    @abstractmethod
    def _parse(self, body: dict[str, Any], call: HostedCall) -> Parsed: ...
    @abstractmethod
    def _complaint(self, body: Any) -> Complaint: ...

    def _headers(self) -> dict[str, str]:
        return {} if self._key is None else {"authorization": f"Bearer {self._key}"}

    async def _all(self, calls: Sequence[HostedCall]) -> list[Completion]:
        tasks = [asyncio.ensure_future(self._one(call)) for call in calls]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # One failure fails the call: answers that still come would be paid for and thrown away.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _one(self, call: HostedCall) -> Completion:
        started = time.monotonic()
        try:
            # A call keeps its place while it waits for its next attempt: what has begun is finished first.
            async with self._here().places:
                parsed, cost = await self._ask(call)
        except (InferenceError, EvsysAuthError, DataError):
            self.totals.count_failure()
            raise
        text, was_cut = cut_at_stop(parsed.text, call.stop)
        return Completion(
            text=text,
            message={**parsed.message, "content": text} if was_cut else parsed.message,
            stop_reason="stop" if was_cut else parsed.stop_reason,
            usage=parsed.usage,
            cost_usd=cost,
            seconds=time.monotonic() - started,
            finish=parsed.finish,
            model=parsed.model,
        )

    async def _ask(self, call: HostedCall) -> tuple[Parsed, float | None]:
        """The answer to a call, sent again without what the model turns out not to take."""
        config, left_out = self.config, set[str]()
        while True:
            try:
                return await call_with_retry_async(
                    lambda: self._attempt(call),
                    attempts=config.attempts,
                    base_delay=config.base_delay_s,
                    max_delay=config.max_delay_s,
                    deadline=config.deadline_s,
                    what=f"{self.name} {config.model}",
                )
            except InferenceError as error:
                if error.field is None or error.field in left_out:
                    raise
                left_out.add(error.field)
                self._ignore(error.field, error)

    def _ignore(self, field: str, reason: InferenceError) -> None:
        if field not in self.ignored:  # another call may have found it out at the same time
            self.ignored.add(field)
            said = "%s: model %s does not take %s, so its own default is used from now on (%s)"
            _log.warning(said, self.name, self.config.model, field, reason)

    async def _attempt(self, call: HostedCall) -> tuple[Parsed, float | None]:
        session, body = self._here(), merge_fields(self._body(call), self.config.extra)
        self.totals.count_request()
        parsed = self._understood(await session.transport.post(self._url(), self._headers(), body), call)
        # The list holds for the provider's standard service; other servers and services have their own prices.
        listed = [list_prices(self.name)] if self.is_provider and parsed.tier in _STANDARD else []
        name = self.config.model.removeprefix("models/")
        return parsed, self._charge(name, parsed.usage, self.config.prices, *listed)

    def _understood(self, answer: HttpAnswer, call: HostedCall) -> Parsed:
        # Some gateways answer 200 and put the error into the body.
        refused = not 200 <= answer.status < 300 or (is_object(answer.body) and bool(answer.body.get("error")))
        if refused:
            complaint = self._complaint(answer.body)
            if complaint.is_withheld:
                silence: Message = {"role": "assistant", "content": ""}
                return Parsed("", silence, "content_filter", complaint.code, TokenUsage())
            words = hide(complaint.message or answer.text.strip(), self._key)
            complaint = replace(complaint, message=words, code=hide(complaint.code, self._key))
            raise error_of(answer, complaint, self._variable or "", self._url())
        try:
            if not is_object(answer.body):
                raise LookupError("it is no JSON object")
            return self._parse(answer.body, call)
        # `_parse` reads the body as if it were right; what is missing or of another type ends as one of these.
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = hide(f"{type(error).__name__}: {error}", self._key)
            shown = hide(answer.text[:200], self._key)
            message = f"{self.provider} sent something that is not a completion ({reason}): {shown!r}."
            raise InferenceError(message, kind="bad_response", status=answer.status) from None

    def _here(self) -> _Session:
        """Connections and limits for the loop of this process."""
        loop = background_loop()
        if self._session is None or self._session.loop is not loop:
            config = self.config
            transport = Transport(
                timeout_s=config.timeout_s, connect_timeout_s=config.connect_timeout_s, connections=config.concurrency
            )
            self._session = _Session(loop, transport, asyncio.Semaphore(config.concurrency))
            # A client that no one closes leaves no connection behind.
            loop.close_at_exit(transport)
            # A function and not a method: the finalizer must not keep the client alive. At exit the loop closes it.
            weakref.finalize(self, _drop, loop, transport).atexit = False
        return self._session

    def _find_key(self) -> tuple[str | None, str | None]:
        """The variable that holds the key, and the key.

        The provider's own variables are only looked at for the provider's own address: no config may send the key of
        one service to another.
        """
        chosen = self.config.api_key_env
        names = [chosen] if chosen else list(self.key_variables) if self.is_provider else []
        for name in names:
            if value := os.environ.get(name, "").strip():
                if not _KEY.fullmatch(value):  # what cannot stand in a header would be shown by the error about it
                    raise EvsysAuthError(f"{name} holds characters that no key has, such as spaces. Set it again.")
                return name, value
        if names:
            raise EvsysAuthError(
                f"inference client '{self.name}' needs a key for {self.provider}, and {' and '.join(names)} "
                f"{'are' if len(names) > 1 else 'is'} not set. Set the environment variable {names[0]}, or name "
                "another one with api_key_env."
            )
        return None, None


def _drop(loop: BackgroundLoop, transport: Transport) -> None:
    loop.submit(transport.aclose())


def count(usage: Any, *path: str) -> int | None:
    """A number of tokens in what a server reports; None where there is none."""
    for key in path:
        usage = usage.get(key) if is_object(usage) else None
    return usage if isinstance(usage, int) and usage >= 0 else None


def merge_fields(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with more fields, objects merged into objects; a null removes a field."""
    found = dict(body)
    for key, value in extra.items():
        inner = found.get(key)
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge_fields(inner, value) if is_object(inner) and is_object(value) else value
    return found
