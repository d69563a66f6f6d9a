"""The contract of an inference client: conversations in, completions with their tokens, cost and time out.

`complete` is what a client implements; `generate(prompt) -> text`, the contract of `register_inference`, follows from
it and works inside and outside of a running event loop. Messages have OpenAI's shape whichever model answers:

    client = get_inference("openai")(model="gpt-4.1")
    [completion] = await client.complete([{"role": "user", "content": "2+2?"}], max_tokens=16, temperature=0.0)
    completion.text, completion.usage.output_tokens, completion.cost_usd

A client of another package that only has `generate` is adapted by `adapter.as_chat_client`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, Self

from ..config.prices import Prices, TokenUsage, find_tariff
from ..data.types import Message, ToolDefinition
from ..errors import show
from .background_loop import background_loop
from .errors import InferenceError

# Who pays for the answers of inference clients.
#
# A judge, a hosted baseline and `eval.inference` are asked deep inside a run. The meter of the run hears of every
# answer as it comes, so that none escapes the bill, whatever becomes of it afterwards:
#
#     with paying(meter):
#         ...                      # here, and in everything that is started from here


class Payer(Protocol):
    """Knows prices, and counts usage."""

    @property
    def prices(self) -> Prices:
        """Its own Prices; they come before those that are built in."""
        ...

    def pay(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Note one answer; its cost is None where it is not known. May be called from any thread."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("payer", default=None)
_open: list[Payer] = []


@contextmanager
def paying(payer: Payer) -> Generator[None]:
    """Send the bill for everything that is asked in this block to `payer`."""
    token = _payer.set(payer)
    _open.append(payer)
    try:
        yield
    finally:
        # By value: the blocks of several threads need not end in the order in which they began.
        _open.remove(payer)
        _payer.reset(token)


def current_payer() -> Payer | None:
    """Who pays here. A thread that somebody's code started knows no one: the one who began last pays for it."""
    return _payer.get() or next(iter(_open[-1:]), None)


type StopReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a model."""

    text: str
    message: Message
    """The answer as the next message of the conversation; what a provider wants back next time is in it."""
    stop_reason: StopReason
    """`content_filter` is an answer that was withheld or refused; `other` is explained by `finish`."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    """None where the model has no known price or its tokens are not known; 0 only where it is really free."""
    seconds: float = 0.0
    """From asking to answer, with all attempts and waits."""
    finish: str = ""
    """Why it ended, in the provider's own words."""
    model: str = ""
    """Which model says that it answered; may be a dated version of the one that was asked."""


@dataclass(frozen=True, slots=True)
class AskedChat:
    """What `ChatClient.complete` is asked for."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float
    stop: tuple[str, ...] = ()
    tools: Sequence[ToolDefinition] = ()
    seed: int | None = None
    n: int = 1


class Totals:
    """What a client has used so far; may be read and added to from any thread."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests sent, repeated ones included."""
        self.completions = 0
        self.failures = 0
        """Calls that ended in an error."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.unpriced = 0
        """Completions whose cost is not known."""
        self._cost = Decimal(0)
        self._lock = threading.Lock()

    @property
    def cost_usd(self) -> float | None:
        """What everything cost; None as soon as the cost of one completion is not known."""
        return None if self.unpriced else float(self._cost)

    def count_request(self) -> None:
        """Note that a request is sent."""
        with self._lock:
            self.requests += 1

    def count_failure(self) -> None:
        """Note that a call has failed for good."""
        with self._lock:
            self.failures += 1

    def add(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Note one completion."""
        with self._lock:
            self.completions += 1
            self.input_tokens += usage.input_tokens or 0
            self.output_tokens += usage.output_tokens or 0
            self.unpriced += cost is None
            self._cost += cost or 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that records hold."""
        names = ("requests", "completions", "failures", "input_tokens", "output_tokens", "unpriced")
        return {name: getattr(self, name) for name in names} | {"cost_usd": self.cost_usd}


class ChatClient:
    """Base of the built-in clients: `generate` from `complete`, totals, and closing."""

    name: ClassVar[str]
    concurrency: int = 1
    """How many conversations are worth asking at once."""

    def __init__(self) -> None:
        self.totals = Totals()

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
        """Answer a conversation `n` times.

        `tools` are OpenAI-style function definitions. `seed` makes answers repeatable as far as the provider goes.
        """
        asked = AskedChat(messages, max_tokens, temperature, tuple(stop or ()), list(tools or ()), seed, n)
        _check_request(asked, stop)
        return await self._complete(asked)

    async def _complete(self, asked: AskedChat) -> list[Completion]:
        """Answer a conversation that was checked."""
        raise NotImplementedError

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        """The answer to a single message, as text."""
        asked = self.complete(
            [{"role": "user", "content": prompt}], max_tokens=max_tokens, temperature=temperature, stop=stop
        )
        [completion] = background_loop().run(asked)
        return completion.text

    def _charge(self, model: str, usage: TokenUsage, *tables: Prices) -> float | None:
        """What an answer cost: counted in `totals` and reported to the payer, whose prices come before `tables`."""
        payer = current_payer()
        tariff = find_tariff(self.name, model, *([payer.prices] if payer else []), *tables)
        cost = None if tariff is None else tariff.of(usage)
        self.totals.add(usage, cost)
        if payer is not None:
            payer.pay(usage, cost)
        return None if cost is None else float(cost)

    def close(self) -> None:
        """Release connections; a closed client may be used again and then opens new ones."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_request(asked: AskedChat, stop: Any) -> None:
    """Refuse what no model can be asked."""
    temperature = asked.temperature
    problems = {
        f"max_tokens must be 1 or more (got {show(asked.max_tokens)})": asked.max_tokens < 1,
        f"n must be 1 or more (got {show(asked.n)})": asked.n < 1,
        f"temperature must be 0 or more and finite (got {show(temperature)})": not 0 <= temperature < math.inf,
        f"stop must be a list of texts (got {show(stop)}). Write [{show(stop)}]": isinstance(stop, str),
        f"stop holds an empty text (got {show(stop)}), which would stop at once. Remove it": "" in asked.stop,
    }
    for message, wrong in problems.items():
        if wrong:
            raise InferenceError(f"{message}.", kind="bad_request")


def cut_at_stop(text: str, stop: Sequence[str] | None) -> tuple[str, bool]:
    """The text before the first stop sequence in it, and whether there was one."""
    ends = [at for sequence in stop or () if (at := text.find(sequence)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)
