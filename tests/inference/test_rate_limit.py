"""The limiter with a clock of its own: no test here waits."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.inference.rate_limit import RateLimiter


class Time:
    """A clock that sleeping moves forward."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def limiter(self, concurrency: int = 8, **limits: int) -> RateLimiter:
        return RateLimiter(concurrency, **limits, clock=self.clock, sleep=self.sleep)


@pytest.fixture
def time() -> Time:
    return Time()


async def test_without_limits_nothing_waits(time: Time) -> None:
    limiter = time.limiter()
    for _ in range(1000):
        await limiter.slot(10**9)
    assert time.waits == []


async def test_requests_beyond_the_limit_wait_for_the_minute_to_pass(time: Time) -> None:
    limiter = time.limiter(requests_per_minute=2)
    sent: list[float] = []
    for _ in range(5):
        await limiter.slot()
        sent.append(time.now - 1000)
        time.now += 1
    assert sent == [0, 1, 60, 61, 120]


async def test_tokens_beyond_the_limit_wait_for_enough_of_them_to_pass(time: Time) -> None:
    limiter = time.limiter(tokens_per_minute=100)
    await limiter.slot(60)
    time.now += 10
    await limiter.slot(40)
    time.now += 10
    await limiter.slot(30)
    assert time.now - 1000 == 60  # the first 60 are enough to forget


async def test_what_was_not_used_is_given_back(time: Time) -> None:
    limiter = time.limiter(tokens_per_minute=100)
    slot = await limiter.slot(100)
    slot.note_used(10)
    await limiter.slot(90)
    assert time.waits == []


async def test_more_was_used_than_reserved(time: Time) -> None:
    limiter = time.limiter(tokens_per_minute=100)
    slot = await limiter.slot(10)
    slot.note_used(100)
    await limiter.slot(1)
    assert time.now - 1000 == 60


async def test_a_request_larger_than_the_limit_goes_alone_instead_of_never(time: Time) -> None:
    limiter = time.limiter(tokens_per_minute=100)
    await limiter.slot(1)
    await limiter.slot(500)
    assert time.now - 1000 == 60


async def test_a_pause_holds_everyone_and_the_longest_wins(time: Time) -> None:
    limiter = time.limiter()
    limiter.pause(30)
    limiter.pause(5)
    await asyncio.gather(*(limiter.slot() for _ in range(3)))
    assert time.now - 1000 == 30


async def test_a_pause_that_grows_while_someone_waits_holds_them_too(time: Time) -> None:
    limiter = time.limiter()
    limiter.pause(10)
    waiting = asyncio.create_task(limiter.slot())
    await asyncio.sleep(0)
    limiter.pause(20)  # asked for at second 10
    await waiting
    assert time.now - 1000 == 30


async def test_requests_enter_in_the_order_they_came(time: Time) -> None:
    limiter, order = time.limiter(requests_per_minute=1), list[int]()

    async def enter(number: int) -> None:
        await limiter.slot()
        order.append(number)

    await asyncio.gather(*(enter(number) for number in range(6)))
    assert order == [0, 1, 2, 3, 4, 5]


async def test_one_that_stops_waiting_does_not_block_the_next(time: Time) -> None:
    limiter = RateLimiter(1, clock=time.clock)
    limiter.pause(3600)
    waiting = asyncio.create_task(limiter.slot())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    time.now += 3600
    await asyncio.wait_for(limiter.slot(), timeout=20)
    assert time.waits == []


async def test_places_are_for_so_many_calls_at_once(time: Time) -> None:
    limiter, inside, most = time.limiter(concurrency=3), 0, 0

    async def call() -> None:
        nonlocal inside, most
        async with limiter.place():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(call() for _ in range(10)))
    assert most == 3


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(1, 60)), max_size=30),
    st.integers(1, 5),
    st.integers(60, 200),
)
def test_no_minute_ever_holds_more_than_the_limits(
    requests: list[tuple[int, int, int]], per_minute: int, tokens_per_minute: int
) -> None:
    async def run() -> list[tuple[float, int]]:
        time, sent = Time(), list[tuple[float, int]]()
        limiter = time.limiter(requests_per_minute=per_minute, tokens_per_minute=tokens_per_minute)
        for pause, reserved, used in requests:
            time.now += pause
            slot = await limiter.slot(reserved)
            slot.note_used(min(used, reserved))
            sent.append((time.now, min(used, reserved)))
        return sent

    sent = asyncio.run(run())
    for start, _ in sent:
        within = [tokens for at, tokens in sent if start <= at < start + 59.999]
        assert len(within) <= per_minute
        assert sum(within) <= tokens_per_minute
