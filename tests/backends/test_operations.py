"""Operations and the worker that runs them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence

import pytest

from evsys_sdk.backends.future import Operation
from evsys_sdk.backends.seeds import seed_of_later, stream_of
from evsys_sdk.backends.worker import UNFINISHED, CallWorker
from evsys_sdk.errors import BackendError


@pytest.fixture
def worker():
    worker = CallWorker("test")
    yield worker
    worker.close()


def _blocked(worker: CallWorker) -> threading.Event:
    """Keep the worker busy until the event is set."""
    gate, started = threading.Event(), threading.Event()
    worker.submit("block", lambda: (started.set(), gate.wait(60)))
    assert started.wait(60)
    return gate


def test_operations_run_in_the_order_of_submission(worker: CallWorker) -> None:
    order: list[int] = []
    operations = [worker.submit("append", lambda n=n: order.append(n)) for n in range(50)]
    for operation in operations:
        operation.result(60)
    assert order == list(range(50))


def test_a_failure_stays_in_its_own_operation(worker: CallWorker) -> None:
    failing = worker.submit("divide", lambda: 1 // 0)
    fine = worker.submit("add", lambda: 1 + 1)
    assert fine.result(60) == 2
    with pytest.raises(ZeroDivisionError):
        failing.result(60)


def test_waiting_too_long_names_the_operation_and_loses_nothing(worker: CallWorker) -> None:
    gate = _blocked(worker)
    operation = worker.submit("optim_step", lambda: "done")
    with pytest.raises(BackendError, match=r"optim_step did not finish within 0\.01 s"):
        operation.result(0.01)
    gate.set()
    assert operation.result(60) == "done"


def test_a_timeout_raised_inside_is_not_mistaken_for_waiting_too_long(worker: CallWorker) -> None:
    def fails() -> None:
        raise TimeoutError("from inside")

    with pytest.raises(TimeoutError, match="from inside"):
        worker.submit("fails", fails).result(60)


async def test_operations_are_awaitable_and_convertible(worker: CallWorker) -> None:
    assert await worker.submit("one", lambda: 1) == 1
    assert await worker.submit("two", lambda: 2).then(str) == "2"
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.submit("three", lambda: "x").then(int)
    assert await Operation.done(4) == 4


async def test_cancelling_the_task_that_waits_does_not_cancel_the_work(worker: CallWorker) -> None:
    gate = _blocked(worker)
    done: list[str] = []
    operation = worker.submit("optim_step", lambda: done.append("stepped"))

    async def wait() -> None:
        await operation

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    operation.result(60)
    assert done == ["stepped"]


def test_neighbours_of_one_group_are_answered_together_and_in_order(worker: CallWorker) -> None:
    calls: list[list[int]] = []

    def square(numbers: Sequence[int]) -> list[int]:
        calls.append(list(numbers))
        return [n * n for n in numbers]

    gate, group = _blocked(worker), object()
    first = [worker.submit_many("square", n, square, group=group) for n in (1, 2, 3)]
    between = worker.submit("between", lambda: None)
    second = [worker.submit_many("square", n, square, group=group) for n in (4, 5)]
    gate.set()
    assert [operation.result(60) for operation in (*first, *second)] == [1, 4, 9, 16, 25]
    between.result(60)
    assert calls == [[1, 2, 3], [4, 5]]


def test_closing_finishes_what_was_submitted_and_refuses_more() -> None:
    worker = CallWorker("closing")
    operations = [worker.submit("nap", lambda: time.sleep(0.01)) for _ in range(5)]
    worker.close()
    worker.close()
    for operation in operations:
        operation.result(0)
    with pytest.raises(BackendError, match="optim_step was asked of a client that is closed"):
        worker.submit("optim_step", lambda: None)


def test_a_dropped_worker_leaves_no_thread_behind() -> None:
    worker = CallWorker("dropped-unclosed")
    worker.submit("one", lambda: 1).result(60)
    thread = next(t for t in threading.enumerate() if t.name == "dropped-unclosed")
    del worker
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_long_work_lets_others_have_their_turn(worker: CallWorker) -> None:
    gate, order = _blocked(worker), list[str]()

    def count_down(many: Sequence[list[int]]) -> list[object]:
        order.extend(f"long {one[0]}" for one in many)
        for one in many:
            one[0] -= 1
        return [UNFINISHED if one[0] else "done" for one in many]

    long = worker.submit_many("long", [3], count_down, group=object())
    short = [worker.submit("short", lambda n=n: order.append(f"short {n}")) for n in (1, 2)]
    gate.set()
    assert long.result(60) == "done"
    for operation in short:
        operation.result(60)
    assert order == ["long 3", "short 1", "short 2", "long 2", "long 1"]


def test_a_closed_worker_finishes_what_is_unfinished() -> None:
    worker, left = CallWorker("test"), [5]

    def count_down(many: Sequence[list[int]]) -> list[object]:
        left[0] -= 1
        return [UNFINISHED if left[0] else "done" for _ in many]

    long = worker.submit_many("long", left, count_down, group=left)
    worker.close()
    assert long.result(60) == "done"


@pytest.mark.parametrize("seed", [0, 1, 7, 2**63 - 1, 2**64 - 1])
def test_a_piece_of_a_request_draws_what_the_whole_would(seed: int) -> None:
    assert seed_of_later(seed, 0) == seed
    for first in (1, 32, 1000):
        piece = seed_of_later(seed, first)
        assert [stream_of(piece, n) for n in range(3)] == [stream_of(seed, first + n) for n in range(3)]
