"""The contract of an inference client: conversations in, completions with tokens, cost and time out.

A client implements `complete`; `generate(prompt) -> text`, the contract of `register_inference`, is derived from it and
works inside and outside a running event loop. Messages have OpenAI's format for every model:

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

# Cost accounting of inference clients.
#
# A judge, a hosted baseline and `eval.inference` send requests deep inside a run. Every answer is reported to the run's
# meter when it arrives, whatever happens to it afterwards:
#
#     with paying(meter):
#         ...                      # and in everything started here


class Payer(Protocol):
    """Provides prices and counts usage, such as the meter of a run."""

    @property
    def prices(self) -> Prices:
        """Prices that take precedence over the built-in ones."""
        ...

    def pay(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Count one answer; its cost is None if unknown. Thread-safe."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("payer", default=None)
_open: list[Payer] = []


@contextmanager
def paying(payer: Payer) -> Generator[None]:
    """Charge all requests of this block to `payer`."""
    token = _payer.set(payer)
    _open.append(payer)
    try:
        yield
    finally:
        # By value: blocks of several threads may end in any order.
        _open.remove(payer)
        _payer.reset(token)


def current_payer() -> Payer | None:
    """The payer of this context. A thread started by other code has no context and uses the latest open payer."""
    return _payer.get() or next(iter(_open[-1:]), None)


type StopReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a model."""

    text: str
    message: Message
    """The answer as the next message of the conversation, with any fields that the provider needs back."""
    stop_reason: StopReason
    """`content_filter`: withheld or refused; `other`: see `finish`."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost_usd: float | None = None
    """None without a known price or token count; 0 only if free."""
    seconds: float = 0.0
    """Duration with all attempts and waits."""
    finish: str = ""
    """The provider's finish reason."""
    model: str = ""
    """The model named in the response; may be a dated version of the requested one."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The arguments of `ChatClient.complete`."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float
    stop: tuple[str, ...] = ()
    tools: Sequence[ToolDefinition] = ()
    seed: int | None = None
    n: int = 1


class Totals:
    """Usage of a client so far; thread-safe."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests sent, retries included."""
        self.completions = 0
        self.failures = 0
        """Calls that ended in an error."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.unpriced = 0
        """Completions of unknown cost."""
        self._cost = Decimal(0)
        self._lock = threading.Lock()

    @property
    def cost_usd(self) -> float | None:
        """Total cost; None if the cost of any completion is unknown."""
        return None if self.unpriced else float(self._cost)

    def count_request(self) -> None:
        """Count a sent request."""
        with self._lock:
            self.requests += 1

    def count_failure(self) -> None:
        """Count a call that has finally failed."""
        with self._lock:
            self.failures += 1

    def add(self, usage: TokenUsage, cost: Decimal | None) -> None:
        """Count one completion."""
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
    """Useful number of concurrent conversations."""

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

        `tools` are OpenAI-style function definitions. `seed` makes answers repeatable if the provider supports it.
        """
        request = ClientRequest(messages, max_tokens, temperature, tuple(stop or ()), list(tools or ()), seed, n)
        _check_request(request, stop)
        return await self._complete(request)

    async def _complete(self, request: ClientRequest) -> list[Completion]:
        """Answer a validated request."""
        raise NotImplementedError

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        """The answer to a single message, as text."""
        completions = self.complete(
            [{"role": "user", "content": prompt}], max_tokens=max_tokens, temperature=temperature, stop=stop
        )
        [completion] = background_loop().run(completions)
        return completion.text

    def _charge(self, model: str, usage: TokenUsage, *tables: Prices) -> float | None:
        """The cost of an answer; adds it to `totals` and reports it to the payer, whose prices precede `tables`."""
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


def _check_request(request: ClientRequest, stop: Any) -> None:
    """Refuse invalid sampling arguments."""
    temperature = request.temperature
    problems = {
        f"max_tokens must be 1 or more (got {show(request.max_tokens)})": request.max_tokens < 1,
        f"n must be 1 or more (got {show(request.n)})": request.n < 1,
        f"temperature must be 0 or more and finite (got {show(temperature)})": not 0 <= temperature < math.inf,
        f"stop must be a list of texts (got {show(stop)}). Write [{show(stop)}]": isinstance(stop, str),
        f"stop has an empty text (got {show(stop)}), which would stop immediately. Remove it": "" in request.stop,
    }
    for message, wrong in problems.items():
        if wrong:
            raise InferenceError(f"{message}.", kind="bad_request")


def cut_at_stop(text: str, stop: Sequence[str] | None) -> tuple[str, bool]:
    """The text before the first stop sequence, and whether there is one."""
    ends = [at for sequence in stop or () if (at := text.find(sequence)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)
