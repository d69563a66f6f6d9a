"""A model in training: requests in order, each applied once, within limits."""

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

# The requests of one model by number, each applied once.
#
# Parts of a batch arrive in any order, and a request whose response was lost arrives twice. So the client numbers them
# from 1: a request waits until all earlier ones have started, and a repeated number is not applied again. A refused
# request consumes its number, because the client has advanced.

_FARTHEST: Final = 10_000
"""Maximum gap between numbers; a larger one is an error."""
_REMEMBERED: Final = 1000
"""Refusals stored for repeated requests."""


@dataclass(slots=True)
class OperationTurns:
    """Orders the requests of a model."""

    next: int = 1
    _waiting: dict[int, Callable[[], None] | None] = field(default_factory=dict[int, Callable[[], None] | None])
    _refused: dict[int, Refusal] = field(default_factory=dict[int, Refusal])
    _missing_since: float | None = None

    def is_taken(self, number: int) -> bool:
        """Whether this number was already taken; raises its refusal if it was or must be refused."""
        if number > self.next + _FARTHEST:
            raise Refusal(400, f"seq_id is {number}, but the next request of this model is number {self.next}.")
        if number in self._refused:
            raise self._refused[number]
        return number < self.next or number in self._waiting

    @property
    def held(self) -> int:
        """Number of requests that wait for an earlier one."""
        return len(self._waiting)

    def take(self, number: int, start: Callable[[], None]) -> None:
        """Call `start` at this number's turn, possibly now."""
        self._waiting[number] = start
        self._advance()

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Consume a number without an operation."""
        self._refused[number] = refusal
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]  # the oldest
        if number >= self.next:
            self._waiting[number] = None  # takes its turn, so that later ones do not wait
            self._advance()

    def overdue(self, after_s: float) -> list[int]:
        """Skip numbers missing for `after_s`, drop the requests that wait for them, and return the missing numbers."""
        if self._missing_since is None or time.monotonic() - self._missing_since < after_s:
            return []
        last = max(self._waiting)
        missing = [number for number in range(self.next, last + 1) if number not in self._waiting]
        for number in missing:
            self._refused[number] = Refusal(410, f"request {number} came too late: later ones were given up meanwhile.")
        self._waiting.clear()
        self.next, self._missing_since = last + 1, None
        return missing

    def _advance(self) -> None:
        while self.next in self._waiting:
            start = self._waiting.pop(self.next)
            self.next += 1
            self._missing_since = None
            if start is not None:
                start()
        if self._waiting and self._missing_since is None:
            self._missing_since = time.monotonic()


type Start = Callable[[], Operation[Response]]
"""Submits an operation to the backend; its result is the response to the client."""


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
    handles: dict[str, Any] | None = None
    """The backend's handles; None until prepared."""
    broken: bool = False
    """Whether the backend failed to prepare it."""
    turns: OperationTurns = field(default_factory=OperationTurns)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def client(self) -> TrainingClient:
        if self.handles is None:
            raise Refusal(400, f"the model {self.model_id} is being created. Wait for the result of create_model.")
        return self.handles["training_client"]

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def request_id(self, seq_id: int) -> str:
        return f"{self.model_id}:{seq_id}"

    def submit(self, seq_id: int, start: Start, check: Callable[[], None] | None = None, *, size: int = 0) -> str:
        """Run an operation in turn; raises at once what `start` or, if it must wait, `check` refuses.

        `size` is the memory it holds until then, in bytes.
        """
        request_id = self.request_id(seq_id)
        if self.turns.is_taken(seq_id):
            return request_id
        self._make_room(seq_id, size)
        if seq_id == self.turns.next:
            return self._start_now(seq_id, start, size)
        try:
            if check is not None:
                check()
        except (EvsysError, Refusal) as error:
            raise self.refuse(seq_id, error) from None
        self._register(request_id, size)
        self.turns.take(seq_id, lambda: self._run(request_id, start))
        return request_id

    def refuse(self, seq_id: int, error: EvsysError | Refusal) -> Refusal:
        """Consume a number and return the refusal for the client."""
        refusal = error if isinstance(error, Refusal) else Refusal(400, str(error))
        if not self.turns.is_taken(seq_id):
            self.turns.refuse(seq_id, refusal)
        return refusal

    def give_up_overdue(self, after_s: float) -> None:
        """End requests that wait for a missing one."""
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
            return  # the waiting requests need this one
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
        self._register(request_id, size)
        self.follow(self._finish(request_id, operation))
        # Last: it starts waiting requests, which must reach the backend after this one.
        self.turns.take(seq_id, lambda: None)
        return request_id

    def _register(self, request_id: str, size: int) -> None:
        self.futures.open(request_id, self.model_id, session_id=self.session_id, size=size)

    def _run(self, request_id: str, start: Start) -> None:
        """Start a registered operation; every outcome becomes its result."""
        self.follow(self._finish(request_id, _start(start)))

    async def _finish(self, request_id: str, operation: Operation[Response]) -> None:
        self.futures.finish(request_id, await outcome(operation, request_id))

    async def wait_until_settled(self) -> None:
        """Wait until all submitted operations have ended."""
        while self._tasks:  # ending operations may start waiting ones
            await asyncio.wait(self._tasks)

    def follow(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of this model and keep a reference to it."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)  # the event loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task


def _start(start: Start) -> Operation[Response]:
    """The operation, or a failed one."""
    try:
        return start()
    except Exception as error:
        failed: concurrent.futures.Future[Response] = concurrent.futures.Future()
        failed.set_exception(error)
        return Operation(failed)


async def outcome(operation: Awaitable[Response], request_id: str) -> Response:
    """The response of an operation, including failures."""
    try:
        return await operation
    except (EvsysError, Refusal) as error:
        return answer_failure(str(error), "user")
    except Exception as error:
        get_logger(__name__).exception("request %s failed", request_id)
        return answer_failure(f"the server failed: {type(error).__name__}: {error}", "server")
