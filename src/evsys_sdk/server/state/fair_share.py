"""Fair sharing of sampling: clients take turns, so that large requests do not block others.

The backend draws a limited number of samples concurrently. Requests are cut into pieces, which start in turn by client;
no client uses more than its share of the slots. The share is computed for one client more than are active, so that a
new client gets slots immediately.
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
"""Draws samples: the number of the first and their count."""


@dataclass(slots=True)
class _Job:
    """One request."""

    start: Start
    results: list[Any]
    """One slot per sample."""
    done: asyncio.Future[None]
    started: int = 0
    """Samples passed to the backend."""
    ended: int = 0


@dataclass(slots=True)
class FairShare:
    """Slots for concurrent samples."""

    room: int
    _waiting: dict[str, deque[_Job]] = field(default_factory=dict[str, deque[_Job]])
    """Waiting requests by client, in order of turn."""
    _running: dict[str, int] = field(default_factory=dict[str, int])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def run[T](self, client: str, count: int, start: Callable[[int, int], Awaitable[Sequence[T]]]) -> list[T]:
        """Draw `count` samples in pieces, ordered by number."""
        job = _Job(start, [None] * count, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(job)
        self._assign_slots()
        await job.done
        return job.results

    async def draw(
        self, client: str, sampler: SamplingClient, prompt: list[int], params: SamplingParams, count: int
    ) -> list[Sample]:
        """Samples of a prompt, equal to those of a single draw."""

        async def start(first: int, n: int) -> Sequence[Sample]:
            seed = None if params.seed is None else seed_of_later(params.seed, first)
            return await sampler.sample(prompt, n, replace(params, seed=seed))

        return await self.run(client, count, start)

    async def run_one[T](self, client: str, submit: Callable[[], Awaitable[T]]) -> T:
        """Run another operation in turn, like one sample."""

        async def start(first: int, n: int) -> Sequence[T]:
            return [await submit()]

        return (await self.run(client, 1, start))[0]

    def forget(self, client: str) -> None:
        """Drop a client's waiting requests; running ones end normally."""
        for job in self._waiting.pop(client, ()):
            if not job.done.done():
                job.done.set_exception(Refusal(410, "the session has ended."))

    @property
    def share(self) -> int:
        """Maximum number of slots of one client."""
        return max(1, self.room // (len(self._waiting.keys() | self._running.keys()) + 1))

    def _assign_slots(self) -> None:
        # Recomputed for each piece: it shrinks with every new client.
        while (free := self.room - sum(self._running.values())) > 0:
            share = self.share
            client = next((name for name in self._waiting if self._running.get(name, 0) < share), None)
            if client is None:
                break
            self._start_piece(client, min(free, share - self._running.get(client, 0)))

    def _start_piece(self, client: str, most: int) -> None:
        jobs = self._waiting.pop(client)
        job = jobs[0]
        count = min(most, len(job.results) - job.started)
        first, job.started = job.started, job.started + count
        if job.started == len(job.results):
            jobs.popleft()
        if jobs:
            self._waiting[client] = jobs  # at the end of the queue
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
            self._assign_slots()

    def _fail(self, client: str, job: _Job, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(error)
        jobs = self._waiting.get(client)
        if jobs and jobs[0] is job:  # drop its remaining pieces
            jobs.popleft()
            if not jobs:
                del self._waiting[client]
