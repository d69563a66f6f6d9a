"""A model's queue without a server: promises are kept whatever happens."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.responses import Response

from evsys_sdk.backends.future import Operation
from evsys_sdk.errors import BackendError
from evsys_sdk.server.answer import Refusal, answer_json
from evsys_sdk.server.state.futures import Futures
from evsys_sdk.server.state.model import TrainedModel


def served(futures: Futures, *, max_queue: int = 8) -> TrainedModel:
    return TrainedModel("s:train:0", "s", "tiny", 8, 1, futures, max_queue)


def done(value: int) -> Operation[Response]:
    return Operation.done(answer_json(value))


async def answer(futures: Futures, request_id: str) -> object:
    return json.loads((await futures.fetch(request_id, 5)).body)


async def test_requests_behind_one_that_never_comes_are_reported() -> None:
    futures = Futures()
    model = served(futures)
    behind = model.submit(3, lambda: done(3))
    model.refuse(2, BackendError("no"))
    model.give_up_overdue(60)
    assert futures.running == 1, "there is still time"
    model.give_up_overdue(0)
    reply = await answer(futures, behind)
    assert isinstance(reply, dict)
    assert "request 1 of this model did not arrive" in reply["error"]
    assert futures.running == 0
    assert await answer(futures, model.submit(4, lambda: done(4))) == 4
    with pytest.raises(Refusal, match="too late"):
        model.submit(1, lambda: done(1))


async def test_a_start_that_fails_unexpectedly_is_a_result_too() -> None:
    futures = Futures()
    model = served(futures)

    def fail() -> Operation[Response]:
        raise OSError("the disk is full")

    request_id = model.submit(2, fail)
    model.submit(1, lambda: done(1))
    reply = await answer(futures, request_id)
    assert reply == {"error": "the server failed: OSError: the disk is full", "category": "server"}
    await model.wait_until_settled()


@pytest.mark.parametrize("number", [20_000, 2**31 - 1])
async def test_a_number_that_no_client_would_reach_is_refused(number: int) -> None:
    model = served(Futures())
    with pytest.raises(Refusal, match="the next request of this model is number 1"):
        model.submit(number, lambda: done(1))
    with pytest.raises(Refusal):
        model.refuse(number, BackendError("no"))
    assert model.turns.held == 0


async def test_a_session_that_ends_leaves_nothing_behind() -> None:
    futures = Futures()
    model = served(futures, max_queue=2)
    waiting = [model.submit(number, lambda: done(1)) for number in (2, 3)]
    with pytest.raises(Refusal, match="--max-queue"):
        model.submit(4, lambda: done(1))
    polling = asyncio.ensure_future(futures.fetch(waiting[0], 5))
    await asyncio.sleep(0)
    futures.end_session("s")
    assert b"the session has ended" in (await polling).body
    assert (futures.running, futures.count_waiting("s:train:0"), futures.count_unfetched()) == (0, 0, 0)
    with pytest.raises(Refusal, match="no request"):
        await futures.fetch(waiting[1], 5)


async def test_a_result_that_takes_long_is_requested_again() -> None:
    futures = Futures()
    futures.open("a", "q", session_id="s")
    early = await futures.fetch("a", 0.01)
    assert (early.status_code, json.loads(early.body)["type"]) == (408, "try_again")
    futures.finish("a", answer_json(1))
    assert await answer(futures, "a") == 1
    assert await answer(futures, "a") == 1, "the first answer may have been lost"
