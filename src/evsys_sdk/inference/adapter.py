"""Adapts clients that only have `generate(prompt) -> text` to `ChatClient`."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from ..config.prices import TokenUsage
from ..data.types import Message
from ..errors import UserCodeError
from .client import ChatClient, ClientRequest, Completion
from .conversation import text_messages
from .errors import InferenceError


def as_chat_client(client: Any) -> ChatClient:
    """`client` itself if it has `complete`, else an adapter around its `generate`."""
    if hasattr(client, "complete"):
        return cast(ChatClient, client)
    if not callable(getattr(client, "generate", None)):
        raise InferenceError(
            f"{type(client).__name__} is not an inference client: it has neither complete nor generate. "
            "Give it generate(*, prompt, max_tokens, temperature, stop) -> str.",
            kind="bad_request",
        )
    return _TextClient(client)


def close_client(client: Any) -> None:
    """Close a client that has `close`."""
    if callable(close := getattr(client, "close", None)):
        close()


class _TextClient(ChatClient):
    """A client with only `generate`: conversations become one text.

    It has no native tool calls; an agent must describe tools in the conversation.
    """

    name: ClassVar[str] = "text"

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        self.name = str(getattr(client, "name", "text"))  # pyright: ignore[reportAttributeAccessIssue]  # an instance attribute here
        self.model = str(getattr(client, "model", ""))
        # Serial by default: it may not be thread-safe.
        self.concurrency = int(getattr(client, "concurrency", 1))
        self._places = threading.BoundedSemaphore(self.concurrency)
        # Async code must not block its loop while it waits; an asyncio.Semaphore belongs to one loop.
        self._places_in_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def _complete(self, request: ClientRequest) -> list[Completion]:
        arguments = {"prompt": as_prompt(request.messages), "max_tokens": request.max_tokens}
        arguments |= {"temperature": request.temperature, "stop": list(request.stop) or None}
        return list(await asyncio.gather(*(self._complete_once(arguments) for _ in range(request.n))))

    async def _complete_once(self, arguments: dict[str, Any]) -> Completion:
        started = time.monotonic()
        self.totals.count_request()
        try:
            if inspect.iscoroutinefunction(self._client.generate):
                async with self._places_here():
                    text = str(await self._client.generate(**arguments))
            else:
                text = await asyncio.to_thread(self._generate, arguments)
        except SystemExit as error:  # it would end the event loop with all other requests
            self.totals.count_failure()
            raise UserCodeError(f"{type(self._client).__name__}.generate called sys.exit({error.code!r})") from error
        except Exception:
            self.totals.count_failure()
            raise
        # Token counts are unknown, so the cost is unknown, not 0.
        usage = TokenUsage()
        cost = self._charge(self.model, usage)
        message: Message = {"role": "assistant", "content": text}
        return Completion(text, message, "stop", usage, cost, seconds=time.monotonic() - started)

    def _generate(self, arguments: dict[str, Any]) -> str:
        with self._places:
            return str(self._client.generate(**arguments))

    def _places_here(self) -> AbstractAsyncContextManager[Any]:
        if getattr(self._client, "concurrency", None) is None:  # async clients may be called concurrently
            return nullcontext()
        return self._places_in_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))

    def close(self) -> None:
        close_client(self._client)


def as_prompt(messages: Sequence[Message]) -> str:
    """A conversation as one text: a single user message alone, several as a transcript."""
    plain = text_messages(messages)
    if len(plain) == 1 and plain[0]["role"] == "user":
        return str(plain[0]["content"])
    turns = [f"{message['role']}: {message['content']}" for message in plain]
    return "\n\n".join([*turns, "assistant:"])
