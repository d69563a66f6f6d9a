"""Whose samples are drawn next; no server needed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from evsys_sdk.errors import BackendError
from evsys_sdk.server.answer import Refusal
from evsys_sdk.server.state.fair_share import FairShare


class Backend:
    """A sampler that the test controls."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int, int]] = []
        """Who was handed what: the client, the first sample and how many."""
        self._open: list[tuple[str, asyncio.Future[list[str]], list[str]]] = []

    def start_for(self, client: str):
        async def start(first: int, count: int) -> list[str]:
            self.order.append((client, first, count))
            done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            self._open.append((client, done, [f"{client}{number}" for number in range(first, first + count)]))
            return await done

        return start

    @property
    def held(self) -> Counter[str]:
        """Samples that each client has in the making."""
        return Counter({client: len(samples) for client, _, samples in self._open})

    async def finish_one(self) -> None:
        """End the oldest piece."""
        _, done, samples = self._open.pop(0)
        if not done.cancelled():
            done.set_result(samples)
        await settle()

    async def finish_all(self) -> None:
        while self._open:
            await self.finish_one()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_in_pieces_is_whole_again() -> None:
    share, backend = FairShare(8), Backend()
    drawing = asyncio.ensure_future(share.run("a", 100, backend.start_for("a")))
    await settle()
    assert backend.held == {"a": 4}, "half of the room is kept for whoever comes next"
    await backend.finish_all()
    assert await drawing == [f"a{number}" for number in range(100)]


async def test_a_greedy_client_leaves_the_others_their_turns() -> None:
    share, backend = FairShare(8), Backend()
    greedy = [asyncio.ensure_future(share.run("greedy", 1024, backend.start_for("greedy"))) for _ in range(3)]
    await settle()
    polite = asyncio.ensure_future(share.run("polite", 2, backend.start_for("polite")))
    await settle()
    assert backend.order[-1] == ("polite", 0, 2), "it is served at once"
    await backend.finish_one()
    for _ in range(20):
        begun = len(backend.order)
        polite = asyncio.ensure_future(share.run("polite", 2, backend.start_for("polite")))
        await settle()
        while not polite.done():
            await backend.finish_one()
        before = backend.order[begun:].index(("polite", 0, 2))
        assert before <= 1, "at most one piece of the greedy client was begun before it"
    assert not any(job.done() for job in greedy)
    await backend.finish_all()
    assert [len(await job) for job in greedy] == [1024, 1024, 1024]


async def test_clients_that_want_the_same_get_the_same() -> None:
    share, backend = FairShare(12), Backend()
    jobs = [asyncio.ensure_future(share.run(name, 60, backend.start_for(name))) for name in "abc"]
    await settle()
    for _ in range(6):
        await backend.finish_one()
    handed = Counter[str]()
    for name, _, count in backend.order:
        handed[name] += count
    assert max(handed.values()) - min(handed.values()) <= share.share * 2
    assert sum(backend.held.values()) <= 12
    await backend.finish_all()
    assert [len(await job) for job in jobs] == [60, 60, 60]


async def test_more_clients_than_room_all_come_to_their_turn() -> None:
    share, backend = FairShare(2), Backend()
    jobs = [asyncio.ensure_future(share.run(str(name), 2, backend.start_for(str(name)))) for name in range(10)]
    await settle()
    await backend.finish_all()
    assert all([len(await job) == 2 for job in jobs])
    firsts = [client for client, first, _ in backend.order if first == 0]
    assert firsts == [str(name) for name in range(10)], "nobody was overtaken"


async def test_a_failure_ends_its_own_request_only() -> None:
    share, backend = FairShare(4), Backend()

    async def fail(first: int, count: int) -> list[str]:
        raise BackendError("out of memory")

    broken = asyncio.ensure_future(share.run("a", 50, fail))
    sound = asyncio.ensure_future(share.run("a", 3, backend.start_for("a")))
    await settle()
    await backend.finish_all()
    with pytest.raises(BackendError, match="out of memory"):
        await broken
    assert await sound == ["a0", "a1", "a2"]


async def test_what_a_session_waits_for_ends_with_it() -> None:
    share, backend = FairShare(4), Backend()
    gone = [asyncio.ensure_future(share.run("gone", 50, backend.start_for("gone"))) for _ in range(2)]
    await settle()
    share.forget("gone")
    for job in gone:
        with pytest.raises(Refusal, match="ended"):
            await job
    stays = asyncio.ensure_future(share.run("stays", 4, backend.start_for("stays")))
    await settle()
    await backend.finish_all()
    assert len(await stays) == 4
    assert {client for client, _, _ in backend.order[1:]} == {"stays"}
