"""Clients of other packages that only have `generate(prompt) -> text`, in the form that everything here uses."""

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
from .client import AskedChat, ChatClient, Completion
from .conversation import text_messages
from .errors import InferenceError


def as_chat_client(client: Any) -> ChatClient:
    """`client` itself if it has `complete`, else its `generate` in that form."""
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
    """Release what a client holds, if it says how."""
    if callable(close := getattr(client, "close", None)):
        close()


class _TextClient(ChatClient):
    """A client that only has `generate`: conversations are given to it as one text.

    It calls no tools by itself; an agent that wants it to says how in the conversation.
    """

    name: ClassVar[str] = "text"

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        self.name = str(getattr(client, "name", "text"))  # pyright: ignore[reportAttributeAccessIssue]  # its own
        self.model = str(getattr(client, "model", ""))
        # Whether two threads may use it at once is not known, unless it says so.
        self.concurrency = int(getattr(client, "concurrency", 1))
        self._places = threading.BoundedSemaphore(self.concurrency)
        # What is awaited must not block its loop while it waits, and such a semaphore serves one loop only.
        self._places_in_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def _complete(self, asked: AskedChat) -> list[Completion]:
        arguments = {"prompt": as_prompt(asked.messages), "max_tokens": asked.max_tokens}
        arguments |= {"temperature": asked.temperature, "stop": list(asked.stop) or None}
        return list(await asyncio.gather(*(self._one(arguments) for _ in range(asked.n))))

    async def _one(self, arguments: dict[str, Any]) -> Completion:
        started = time.monotonic()
        self.totals.count_request()
        try:
            if inspect.iscoroutinefunction(self._client.generate):
                async with self._places_here():
                    text = str(await self._client.generate(**arguments))
            else:
                text = await asyncio.to_thread(self._generate, arguments)
        except SystemExit as error:  # it would end the event loop, and all other requests with it
            self.totals.count_failure()
            raise UserCodeError(f"{type(self._client).__name__}.generate called sys.exit({error.code!r})") from error
        except Exception:
            self.totals.count_failure()
            raise
        # Such a client does not say how many tokens it used: its cost is unknown, which is not the same as 0.
        usage = TokenUsage()
        cost = self._charge(self.model, usage)
        message: Message = {"role": "assistant", "content": text}
        return Completion(text, message, "stop", usage, cost, seconds=time.monotonic() - started)

    def _generate(self, arguments: dict[str, Any]) -> str:
        with self._places:
            return str(self._client.generate(**arguments))

    def _places_here(self) -> AbstractAsyncContextManager[Any]:
        if getattr(self._client, "concurrency", None) is None:  # what is awaited may be asked again meanwhile
            return nullcontext()
        return self._places_in_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))

    def close(self) -> None:
        close_client(self._client)


def as_prompt(messages: Sequence[Message]) -> str:
    """A conversation as one text: a single user message is its own text, several become a transcript."""
    plain = text_messages(messages)
    if len(plain) == 1 and plain[0]["role"] == "user":
        return str(plain[0]["content"])
    turns = [f"{message['role']}: {message['content']}" for message in plain]
    return "\n\n".join([*turns, "assistant:"])
