"""A hosted model, asked by chat completions: keys, requests, retries, errors and accounting.

A field that a model turns out not to take (some take no temperature) is left out from then on, with a warning.
`answers.py` reads what comes back.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from ...config.base import MisplacedValue, Strict
from ...config.prices import Price, list_prices
from ...data.shapes import is_object
from ...data.types import Message
from ...errors import DataError, EvsysAuthError
from ...log import get_logger
from ...redact import hide
from ..background_loop import BackgroundLoop, background_loop
from ..client import AskedChat, ChatClient, Completion, cut_at_stop
from ..errors import InferenceError
from ..messages import check_conversation, check_tools
from ..retry import call_with_retry_async
from ..transport import HttpAnswer, Transport
from .answers import error_of, read_complaint, read_completion

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
# The API takes no more of them; at the others the answer is cut here.
_MOST_STOPS = 4
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class _Session:
    """What belongs to one event loop."""

    loop: BackgroundLoop
    transport: Transport
    places: asyncio.Semaphore


class HostedClient(ChatClient):
    """A model behind an HTTP API for chat completions."""

    Config = HostedConfig
    provider: ClassVar[str]
    address: ClassVar[str]
    """Where the provider itself serves."""
    key_variables: ClassVar[tuple[str, ...]]
    """Environment variables that may hold its key, in the order they are looked at."""
    limit_field: ClassVar[str] = "max_tokens"
    """How the provider itself calls the token limit."""
    skips_blank_stops: ClassVar[bool] = False
    """Whether it ignores stop sequences of blanks; the answer is cut at them here."""

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

    async def _complete(self, asked: AskedChat) -> list[Completion]:
        body: dict[str, Any] = {"model": self.config.model, "messages": check_conversation(asked.messages)}
        body |= {"tools": check_tools(asked.tools)} if asked.tools else {}
        body |= {"max_tokens": asked.max_tokens, "temperature": asked.temperature}
        # Each answer is its own request, so that each has its own tokens, cost and attempts.
        # And its own seed: with one for all of them, the answers would be the same n times.
        seeds = [{} if asked.seed is None else {"seed": asked.seed + number} for number in range(asked.n)]
        return await background_loop().call(self._all([body | one for one in seeds], asked.stop))

    def close(self) -> None:
        session, self._session = self._session, None
        if session:
            session.loop.finish(session.transport.aclose())

    def _body(self, body: Mapping[str, Any], stop: Sequence[str]) -> dict[str, Any]:
        """What is sent: without the fields that the model does not take."""
        stops = [text for text in stop if text.strip() or not self.skips_blank_stops][:_MOST_STOPS]
        limit = self.limit_field if self.is_provider else "max_tokens"
        # Refused by one name, the limit is sent by the other: without any, an answer could become endless.
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[limit]
        fields = {**body, "max_tokens": None, other if limit in self.ignored else limit: body["max_tokens"]}
        fields["stop"] = stops or None
        sent = {key: value for key, value in fields.items() if value is not None and key not in self.ignored}
        return merge_fields(sent, self.config.extra)

    async def _all(self, bodies: Sequence[dict[str, Any]], stop: Sequence[str]) -> list[Completion]:
        tasks = [asyncio.ensure_future(self._one(body, stop)) for body in bodies]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # One failure fails the call: answers that still come would be paid for and thrown away.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _one(self, body: dict[str, Any], stop: Sequence[str]) -> Completion:
        started = time.monotonic()
        try:
            # A call keeps its place while it waits for its next attempt: what has begun is finished first.
            async with self._here().places:
                found = await self._ask(body, stop)
        except (InferenceError, EvsysAuthError, DataError):
            self.totals.count_failure()
            raise
        text, was_cut = cut_at_stop(found.text, stop)
        if was_cut:
            found = replace(found, text=text, message={**found.message, "content": text}, stop_reason="stop")
        return replace(found, seconds=time.monotonic() - started)

    async def _ask(self, body: dict[str, Any], stop: Sequence[str]) -> Completion:
        """The answer to a call, sent again without what the model turns out not to take."""
        config, left_out = self.config, set[str]()
        while True:
            try:
                return await call_with_retry_async(
                    lambda: self._attempt(self._body(body, stop)),
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

    async def _attempt(self, body: dict[str, Any]) -> Completion:
        self.totals.count_request()
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        answer = await self._here().transport.post(f"{self.base_url}/chat/completions", headers, body)
        found = self._understood(answer, len(body["messages"]))
        # The list holds for the provider's standard service; other servers and services have their own prices.
        tier = (is_object(answer.body) and answer.body.get("service_tier")) or ""
        listed = [list_prices(self.name)] if self.is_provider and tier in _STANDARD else []
        name = self.config.model.removeprefix("models/")
        return replace(found, cost_usd=self._charge(name, found.usage, self.config.prices, *listed))

    def _understood(self, answer: HttpAnswer, index: int) -> Completion:
        # Some gateways answer 200 and put the error into the body.
        refused = not 200 <= answer.status < 300 or (is_object(answer.body) and bool(answer.body.get("error")))
        if refused:
            complaint = read_complaint(answer.body)
            if complaint.is_withheld:
                silence: Message = {"role": "assistant", "content": ""}
                return Completion("", silence, "content_filter", finish=complaint.code)
            words = hide(complaint.message or answer.text.strip(), self._key)
            complaint = replace(complaint, message=words, code=hide(complaint.code, self._key))
            raise error_of(answer, complaint, self._variable or "", f"{self.base_url}/chat/completions")
        try:
            if not is_object(answer.body):
                raise LookupError("it is no JSON object")
            return read_completion(answer.body, index)
        # The body is read as if it were right; what is missing or of another type ends as one of these.
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
            # A client that no one closes leaves no connection behind; the end of the process closes what is open.
            # A function and not a method: the finalizer must not keep the client alive.
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
