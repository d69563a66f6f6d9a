"""A hosted model behind chat completions: keys, requests, retries, errors and accounting.

A field that the model rejects (some accept no temperature) is omitted from then on, with a warning. `answers.py` parses
responses.
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
from ..client import ChatClient, ClientRequest, Completion, cut_at_stop
from ..errors import InferenceError
from ..messages import check_conversation, check_tools
from ..retry import call_with_retry_async
from ..transport import HttpAnswer, Transport
from .answers import error_of, read_complaint, read_completion

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Capitals only: keys have lower-case letters, and a key misplaced here must not appear in a message."""


class HostedConfig(Strict):
    """Params of a client for a hosted model."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = Field(min_length=1)
    """The model's name at the provider."""
    base_url: str | None = None
    """Another server with the same protocol. It gets a key only if `api_key_env` names one."""
    api_key_env: str | None = None
    """Environment variable of the key; by default the provider's usual one."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of one attempt, from sending to the last byte."""
    connect_timeout_s: float = Field(default=20.0, gt=0)
    """Time limit for connecting."""
    attempts: int = Field(default=6, ge=1)
    """Attempts at a request before it counts as failed."""
    base_delay_s: float = Field(default=1.0, ge=0)
    """Maximum wait before the second attempt; it doubles with each further one."""
    max_delay_s: float = Field(default=60.0, ge=0)
    """Maximum wait between attempts, unless the server requests a longer one."""
    deadline_s: float = Field(default=1800.0, gt=0)
    """No new attempt starts later than this after the first failure."""
    concurrency: int = Field(default=8, ge=1)
    """Concurrent requests."""
    prices: dict[str, Price | list[Price]] = {}
    """Prices of a client used directly; in an experiment, use `budget.prices`."""
    extra: dict[str, Any] = {}
    """Further fields of the request body as the provider documents them; null removes a field."""

    @model_validator(mode="after")
    def _check(self) -> HostedConfig:
        # Checked here, because field errors show the value, which may be a secret.
        address = self.base_url
        if address is not None and not address.startswith(("http://", "https://")):
            raise MisplacedValue("must be a URL that starts with https:// or http://.", "base_url")
        if address is not None and "@" in address.partition("://")[2].partition("/")[0]:
            hint = "Set the key in an environment variable and name it in api_key_env."
            raise MisplacedValue(f"must not contain a user name or password. {hint}", "base_url")
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            hint = "Write a name in capitals, such as MY_API_KEY, never the key itself."
            raise MisplacedValue(f"must be the name of an environment variable. {hint}", "api_key_env")
        return self


_log = get_logger(__name__)
_STANDARD = ("", "default", "standard", "auto")
# The API's limit; the answer is cut here at further stop sequences.
_MOST_STOPS = 4
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class _Session:
    """The state of one event loop."""

    loop: BackgroundLoop
    transport: Transport
    places: asyncio.Semaphore


class HostedClient(ChatClient):
    """A model behind an HTTP API for chat completions."""

    Config = HostedConfig
    provider: ClassVar[str]
    address: ClassVar[str]
    """The provider's own base URL."""
    key_variables: ClassVar[tuple[str, ...]]
    """Environment variables of its key, in order of precedence."""
    limit_field: ClassVar[str] = "max_tokens"
    """The provider's name of the token limit."""
    skips_blank_stops: ClassVar[bool] = False
    """Whether it ignores blank stop sequences; the answer is then cut here."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.config = self.Config(**params)
        self.concurrency = self.config.concurrency
        self.base_url = (self.config.base_url or self.address).rstrip("/")
        self._variable, self._key = self._find_key()
        self.ignored: set[str] = set()
        """Request fields that the model has rejected and that are no longer sent."""
        self._session: _Session | None = None

    @property
    def is_provider(self) -> bool:
        """Whether requests go to the provider itself rather than a compatible server."""
        return self.base_url == self.address

    async def _complete(self, request: ClientRequest) -> list[Completion]:
        body: dict[str, Any] = {"model": self.config.model, "messages": check_conversation(request.messages)}
        body |= {"tools": check_tools(request.tools)} if request.tools else {}
        body |= {"max_tokens": request.max_tokens, "temperature": request.temperature}
        # One request per answer, so that each has its own token count, cost and retries, and its own seed: one seed
        # would give n equal answers.
        seeds = [{} if request.seed is None else {"seed": request.seed + number} for number in range(request.n)]
        return await background_loop().call(self._all([body | seed for seed in seeds], request.stop))

    def close(self) -> None:
        session, self._session = self._session, None
        if session:
            session.loop.finish(session.transport.aclose())

    def _body(self, body: Mapping[str, Any], stop: Sequence[str]) -> dict[str, Any]:
        """The request body, without fields that the model rejects."""
        stops = [text for text in stop if text.strip() or not self.skips_blank_stops][:_MOST_STOPS]
        limit = self.limit_field if self.is_provider else "max_tokens"
        # If the model rejects one name of the limit, send the other: an answer needs a limit.
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[limit]
        fields = {**body, "max_tokens": None, other if limit in self.ignored else limit: body["max_tokens"]}
        fields["stop"] = stops or None
        sent = {key: value for key, value in fields.items() if value is not None and key not in self.ignored}
        return merge_fields(sent, self.config.extra)

    async def _all(self, bodies: Sequence[dict[str, Any]], stop: Sequence[str]) -> list[Completion]:
        tasks = [asyncio.ensure_future(self._complete_once(body, stop)) for body in bodies]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # One failure fails the call: cancel the others, whose cost would be wasted.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _complete_once(self, body: dict[str, Any], stop: Sequence[str]) -> Completion:
        started = time.monotonic()
        try:
            # A call keeps its slot while it waits for a retry, so that started calls finish first.
            async with self._here().places:
                completion = await self._send(body, stop)
        except (InferenceError, EvsysAuthError, DataError):
            self.totals.count_failure()
            raise
        text, was_cut = cut_at_stop(completion.text, stop)
        if was_cut:
            completion = replace(
                completion, text=text, message={**completion.message, "content": text}, stop_reason="stop"
            )
        return replace(completion, seconds=time.monotonic() - started)

    async def _send(self, body: dict[str, Any], stop: Sequence[str]) -> Completion:
        """Send a call, again without any field that the model rejects."""
        config, omitted = self.config, set[str]()
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
                if error.field is None or error.field in omitted:
                    raise
                omitted.add(error.field)
                self._ignore(error.field, error)

    def _ignore(self, field: str, reason: InferenceError) -> None:
        if field not in self.ignored:  # another call may have added it meanwhile
            self.ignored.add(field)
            message = "%s: model %s does not support %s, so its default is used from now on (%s)"
            _log.warning(message, self.name, self.config.model, field, reason)

    async def _attempt(self, body: dict[str, Any]) -> Completion:
        self.totals.count_request()
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        answer = await self._here().transport.post(f"{self.base_url}/chat/completions", headers, body)
        completion = self._understood(answer, len(body["messages"]))
        # List prices apply only to the provider's standard service tier.
        tier = (is_object(answer.body) and answer.body.get("service_tier")) or ""
        listed = [list_prices(self.name)] if self.is_provider and tier in _STANDARD else []
        name = self.config.model.removeprefix("models/")
        return replace(completion, cost_usd=self._charge(name, completion.usage, self.config.prices, *listed))

    def _understood(self, answer: HttpAnswer, index: int) -> Completion:
        # Some gateways answer 200 and put the error into the body.
        refused = not 200 <= answer.status < 300 or (is_object(answer.body) and bool(answer.body.get("error")))
        if refused:
            complaint = read_complaint(answer.body)
            if complaint.is_withheld:
                empty: Message = {"role": "assistant", "content": ""}
                return Completion("", empty, "content_filter", finish=complaint.code)
            words = hide(complaint.message or answer.text.strip(), self._key)
            complaint = replace(complaint, message=words, code=hide(complaint.code, self._key))
            raise error_of(answer, complaint, self._variable or "", f"{self.base_url}/chat/completions")
        try:
            if not is_object(answer.body):
                raise LookupError("not a JSON object")
            return read_completion(answer.body, index)
        # The body is read without validation; missing or mistyped fields raise one of these.
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = hide(f"{type(error).__name__}: {error}", self._key)
            shown = hide(answer.text[:200], self._key)
            message = f"{self.provider} sent an invalid completion ({reason}): {shown!r}."
            raise InferenceError(message, kind="bad_response", status=answer.status) from None

    def _here(self) -> _Session:
        """The session of this process's event loop."""
        loop = background_loop()
        if self._session is None or self._session.loop is not loop:
            config = self.config
            transport = Transport(
                timeout_s=config.timeout_s, connect_timeout_s=config.connect_timeout_s, connections=config.concurrency
            )
            self._session = _Session(loop, transport, asyncio.Semaphore(config.concurrency))
            # Closes the connections of a garbage-collected client. A function, because a bound method would keep
            # the client alive.
            weakref.finalize(self, _drop, loop, transport).atexit = False
        return self._session

    def _find_key(self) -> tuple[str | None, str | None]:
        """The environment variable and its key.

        The provider's own variables apply only to its own address, so that no config sends a key to another service.
        """
        chosen = self.config.api_key_env
        names = [chosen] if chosen else list(self.key_variables) if self.is_provider else []
        for name in names:
            if value := os.environ.get(name, "").strip():
                if not _KEY.fullmatch(value):  # invalid header values would appear in the error
                    raise EvsysAuthError(
                        f"{name} has characters that are invalid in a key, such as spaces. Set it again."
                    )
                return name, value
        if names:
            raise EvsysAuthError(
                f"inference client '{self.name}' needs a key for {self.provider}, but {' and '.join(names)} "
                f"{'are' if len(names) > 1 else 'is'} not set. Set the environment variable {names[0]}, or name "
                "another one with api_key_env."
            )
        return None, None


def _drop(loop: BackgroundLoop, transport: Transport) -> None:
    loop.submit(transport.aclose())


def merge_fields(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with more fields, objects merged into objects; a null removes a field."""
    merged = dict(body)
    for key, value in extra.items():
        inner = merged.get(key)
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_fields(inner, value) if is_object(inner) and is_object(value) else value
    return merged
