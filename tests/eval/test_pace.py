"""Scoring that spares training: how much of the time it takes, and that it hurries once it is waited for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evsys_sdk.eval.pace import Pace


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, really_sleep, here = Clock(), asyncio.sleep, threading.get_ident()

    async def sleep(seconds: float) -> None:
        if threading.get_ident() != here:  # a loop that an earlier test left in the background
            return await really_sleep(seconds)
        clock.now += seconds
        await really_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


async def work(pace: Pace, clock: Clock, seconds: float, n: int) -> float:
    """Seconds that some attempts take one after another at a pace."""
    began = clock.now
    for _ in range(n):
        async with pace:
            clock.now += seconds
    return clock.now - began


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
async def test_attempts_take_their_share_of_the_time(share: float, clock: Clock) -> None:
    elapsed = await work(Pace(share, at_once=1, clock=clock), clock, 2.0, 50)
    assert (50 * 2.0) / (elapsed + 2.0 / share - 2.0) == pytest.approx(
        share, rel=0.02
    )  # the last rest is not waited for


async def test_the_whole_share_never_waits(clock: Clock) -> None:
    assert await work(Pace(1.0, at_once=1, clock=clock), clock, 2.0, 50) == 100.0


async def test_attempts_begin_together_and_rest_together(clock: Clock) -> None:
    pace, began = Pace(0.5, at_once=4, clock=clock), list[float]()

    async def attempt() -> None:
        async with pace:
            began.append(round(clock.now - 100.0, 6))
            await asyncio.sleep(1.0)  # four of them: one after another on this clock

    await asyncio.gather(*(attempt() for _ in range(8)))
    assert began[:4] == [0.0, 1.0, 2.0, 3.0]
    assert min(began[4:]) >= 8.0, "the first four worked for 4 s, so that it rests for 4 more"


async def test_who_waits_for_it_releases_it(clock: Clock) -> None:
    released = threading.Event()
    pace = Pace(0.01, at_once=1, released=released, clock=clock)
    await work(pace, clock, 10.0, 1)
    assert pace.rest == pytest.approx(990.0)
    released.set()
    assert pace.rest == 0.0
    assert await work(pace, clock, 10.0, 3) == 30.0
