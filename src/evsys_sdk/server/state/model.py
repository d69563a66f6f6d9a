"""A model in training: its requests in their order, each applied once, none beyond what fits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from ...backends.client import TrainingClient
from ...backends.future import Operation
from ...errors import EvsysError
from ...log import get_logger
from ..answer import Refusal, answer_failure
from .futures import Futures

# The requests of one model in the order of their numbers, each applied once.
#
# Parts of one batch arrive in any order, and a request whose answer was lost arrives twice. So each carries a number,
# counted by the client from 1: it waits until all before it have started, and a number that was seen is not taken
# again. A refused request uses up its number, because the client has counted on.

_FARTHEST: Final = 10_000
"""No client has that many requests under way; a number beyond is a mistake, and waiting for it would be endless."""
_REMEMBERED: Final = 1000
"""Refusals kept to be repeated to a client that asks again."""


@dataclass(slots=True)
class OperationTurns:
    """Who is next."""

    next: int = 1
    _held: dict[int, Callable[[], None] | None] = field(default_factory=dict[int, Callable[[], None] | None])
    _refused: dict[int, Refusal] = field(default_factory=dict[int, Refusal])
    _missing_since: float | None = None

    def seen(self, number: int) -> bool:
        """Whether a request of this number was taken already; raises what it was or must be refused with."""
        if number > self.next + _FARTHEST:
            raise Refusal(400, f"seq_id is {number}, but the next request of this model is number {self.next}.")
        if number in self._refused:
            raise self._refused[number]
        return number < self.next or number in self._held

    @property
    def held(self) -> int:
        """How many wait for one before them."""
        return len(self._held)

    def take(self, number: int, start: Callable[[], None]) -> None:
        """Call `start` when it is this number's turn, which may be now."""
        self._held[number] = start
        self._advance()

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Use up a number without doing anything."""
        self._refused[number] = refusal
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]  # dicts keep their order: the oldest
        if number >= self.next:
            self._held[number] = None  # takes its turn, so that those behind it do not wait for it
            self._advance()

    def overdue(self, after_s: float) -> list[int]:
        """Numbers that have not arrived for so long that those behind them must be given up, which happens here."""
        if self._missing_since is None or time.monotonic() - self._missing_since < after_s:
            return []
        last = max(self._held)
        missing = [number for number in range(self.next, last + 1) if number not in self._held]
        for number in missing:
            self._refused[number] = Refusal(410, f"request {number} came too late: later ones were given up meanwhile.")
        self._held.clear()
        self.next, self._missing_since = last + 1, None
        return missing

    def _advance(self) -> None:
        while self.next in self._held:
            start = self._held.pop(self.next)
            self.next += 1
            self._missing_since = None
            if start is not None:
                start()
        if self._held and self._missing_since is None:
            self._missing_since = time.monotonic()


type Start = Callable[[], Operation[Response]]
"""Hands an operation to the backend; the operation's result is the answer to the client."""


@dataclass(slots=True)
class TrainedModel:
    """One model of one session."""

    model_id: str
    session_id: str
    base_model: str
    rank: int
    seed: int
    futures: Futures
    max_queue: int
    delay_s: float = 0.0
    handles: dict[str, Any] | None = None
    """What the backend prepared; None until it has."""
    broken: bool = False
    """Whether the backend could not prepare it."""
    turns: OperationTurns = field(default_factory=OperationTurns)
    _last: asyncio.Task[None] | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def client(self) -> TrainingClient:
        if self.handles is None:
            raise Refusal(400, f"the model {self.model_id} is still being made. Wait for the result of create_model.")
        return self.handles["training_client"]

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def request_id(self, seq_id: int) -> str:
        return f"{self.model_id}:{seq_id}"

    def submit(self, seq_id: int, start: Start, check: Callable[[], None] | None = None, *, size: int = 0) -> str:
        """Do this when it is its turn; refuses at once what `start` or, if others come first, `check` refuses.

        `size` is what it takes to remember until then, in bytes.
        """
        request_id = self.request_id(seq_id)
        if self.turns.seen(seq_id):
            return request_id
        self._make_room(seq_id, size)
        if seq_id == self.turns.next and not self.delay_s:
            return self._start_now(seq_id, start, size)
        try:
            if check is not None:
                check()
        except (EvsysError, Refusal) as error:
            raise self.refuse(seq_id, error) from None
        self._promise(request_id, size)
        self.turns.take(seq_id, lambda: self._run(request_id, start))
        return request_id

    def refuse(self, seq_id: int, error: EvsysError | Refusal) -> Refusal:
        """Use up a number and give back what to tell the client."""
        refusal = error if isinstance(error, Refusal) else Refusal(400, str(error))
        if not self.turns.seen(seq_id):
            self.turns.refuse(seq_id, refusal)
        return refusal

    def give_up_overdue(self, after_s: float) -> None:
        """End the requests that wait for one that does not come."""
        first = self.turns.next
        if not (missing := self.turns.overdue(after_s)):
            return
        for seq_id in range(first, self.turns.next):
            if seq_id not in missing and self.request_id(seq_id) in self.futures:
                message = (
                    f"request {missing[0]} of this model did not arrive within {after_s:g} s, so this one was dropped."
                )
                self.futures.finish(self.request_id(seq_id), answer_failure(message, "user"))

    def _make_room(self, seq_id: int, size: int) -> None:
        if seq_id == self.turns.next and self.turns.held:
            return  # those that fill the queue wait for this one
        if self.futures.count_waiting(self.model_id) < self.max_queue:
            self.futures.memory.check(size)
            return
        raise Refusal(
            429,
            f"{self.max_queue} requests of this model are waiting or their results were not fetched. Fetch results, or "
            "raise --max-queue.",
            retry_after_s=1,
        )

    def _start_now(self, seq_id: int, start: Start, size: int) -> str:
        try:
            operation = start()
        except (EvsysError, Refusal) as error:
            raise self.refuse(seq_id, error) from None
        request_id = self.request_id(seq_id)
        self._promise(request_id, size)
        self.follow(self._finish(request_id, operation))
        # Last: it starts those that wait for this one, and the backend must have got this one before them.
        self.turns.take(seq_id, lambda: None)
        return request_id

    def _promise(self, request_id: str, size: int) -> None:
        self.futures.open(request_id, self.model_id, session_id=self.session_id, size=size)

    def _run(self, request_id: str, start: Start) -> None:
        """Start what was promised earlier; whatever happens, the promise is kept."""
        if self.delay_s:
            self._last = self.follow(self._run_after(self._last, request_id, start))
        else:
            self.follow(self._finish(request_id, _start(start)))

    async def _run_after(self, before: asyncio.Task[None] | None, request_id: str, start: Start) -> None:
        """With an artificial service time, one operation ends before the next begins."""
        if before is not None:
            await asyncio.wait([before])  # unlike `await before`, it does not raise what became of that
        await asyncio.sleep(self.delay_s)
        await self._finish(request_id, _start(start))

    async def _finish(self, request_id: str, operation: Operation[Response]) -> None:
        self.futures.finish(request_id, await outcome(operation, request_id))

    async def wait_until_settled(self) -> None:
        """Wait until everything submitted so far has ended."""
        while self._tasks:  # what ends may start what waited for it
            await asyncio.wait(self._tasks)

    def follow(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that belongs to this model."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)  # an event loop keeps no task alive by itself
        task.add_done_callback(self._tasks.discard)
        return task


def _start(start: Start) -> Operation[Response]:
    """The operation, or one that has failed already."""
    try:
        return start()
    except Exception as error:
        failed: concurrent.futures.Future[Response] = concurrent.futures.Future()
        failed.set_exception(error)
        return Operation(failed)


async def outcome(operation: Awaitable[Response], request_id: str) -> Response:
    """The answer of an operation, also when it fails."""
    try:
        return await operation
    except (EvsysError, Refusal) as error:
        return answer_failure(str(error), "user")
    except Exception as error:
        get_logger(__name__).exception("request %s failed", request_id)
        return answer_failure(f"the server failed: {type(error).__name__}: {error}", "server")
