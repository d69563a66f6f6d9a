"""Whose samples are drawn next: clients take turns, so that one who asks for much does not keep the others waiting.

The backend draws a number of samples at once. What is asked for is cut into pieces; the clients take turns in having a
piece of theirs started, and none holds more than its share of the room. The share is that of one client more than there
are, so that the next client finds some room at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...backends.client import Sample, SamplingClient, SamplingParams
from ...backends.seeds import seed_of_later
from ..answer import Refusal

type Start = Callable[[int, int], Awaitable[Sequence[Any]]]
"""Draws samples: the number of the first and how many."""


@dataclass(slots=True)
class _Job:
    """What one request asks for."""

    start: Start
    results: list[Any]
    """One place for each sample."""
    done: asyncio.Future[None]
    begun: int = 0
    """Samples that were handed to the backend."""
    ended: int = 0


@dataclass(slots=True)
class FairShare:
    """Room for a number of samples at once."""

    room: int
    _waiting: dict[str, deque[_Job]] = field(default_factory=dict[str, deque[_Job]])
    """Of each client, the one whose turn is next first."""
    _running: dict[str, int] = field(default_factory=dict[str, int])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def run[T](self, client: str, count: int, start: Callable[[int, int], Awaitable[Sequence[T]]]) -> list[T]:
        """Draw `count` samples in as many pieces as it takes; their order is that of their numbers."""
        job = _Job(start, [None] * count, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(job)
        self._hand_out()
        await job.done
        return job.results

    async def draw(
        self, client: str, sampler: SamplingClient, prompt: list[int], params: SamplingParams, count: int
    ) -> list[Sample]:
        """Samples of a prompt, which are the same as if all were drawn at once."""

        async def start(first: int, n: int) -> Sequence[Sample]:
            seed = None if params.seed is None else seed_of_later(params.seed, first)
            return await sampler.sample(prompt, n, replace(params, seed=seed))

        return await self.run(client, count, start)

    async def ask[T](self, client: str, submit: Callable[[], Awaitable[T]]) -> T:
        """Anything else that takes its turn like a sample."""

        async def start(first: int, n: int) -> Sequence[T]:
            return [await submit()]

        return (await self.run(client, 1, start))[0]

    def forget(self, client: str) -> None:
        """Drop what a client waits for; what has begun is left to end."""
        for job in self._waiting.pop(client, ()):
            if not job.done.done():
                job.done.set_exception(Refusal(410, "the session has ended."))

    @property
    def share(self) -> int:
        """How much of the room one client may hold."""
        return max(1, self.room // (len(self._waiting.keys() | self._running.keys()) + 1))

    def _hand_out(self) -> None:
        # The share is asked for anew with each piece: it shrinks with every client that comes.
        while (free := self.room - sum(self._running.values())) > 0:
            share = self.share
            client = next((name for name in self._waiting if self._running.get(name, 0) < share), None)
            if client is None:
                break
            self._start_piece(client, min(free, share - self._running.get(client, 0)))

    def _start_piece(self, client: str, most: int) -> None:
        jobs = self._waiting.pop(client)
        job = jobs[0]
        count = min(most, len(job.results) - job.begun)
        first, job.begun = job.begun, job.begun + count
        if job.begun == len(job.results):
            jobs.popleft()
        if jobs:
            self._waiting[client] = jobs  # at the end of the line
        self._running[client] = self._running.get(client, 0) + count
        task = asyncio.ensure_future(self._run_piece(client, job, first, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_piece(self, client: str, job: _Job, first: int, count: int) -> None:
        try:
            job.results[first : first + count] = await job.start(first, count)
            job.ended += count
            if job.ended == len(job.results) and not job.done.done():
                job.done.set_result(None)
        except Exception as error:
            self._fail(client, job, error)
        finally:
            self._running[client] -= count
            if not self._running[client]:
                del self._running[client]
            self._hand_out()

    def _fail(self, client: str, job: _Job, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(error)
        jobs = self._waiting.get(client)
        if jobs and jobs[0] is job:  # its other pieces would be drawn for no one
            jobs.popleft()
            if not jobs:
                del self._waiting[client]
