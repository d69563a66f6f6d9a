"""Order, deadlines and trust, without a server: futures that the test itself finishes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from evsys_sdk.backends.tinker.errors import LossFunctionError
from evsys_sdk.backends.tinker.pipeline import Pipeline
from evsys_sdk.errors import BackendError, EvsysAuthError

LIMITS: dict[Any, float] = {"connect": 30.0, "train": 30.0, "sample": 30.0}


class Refused(Exception):
    status_code = 400


class Broken(Exception):
    status_code = 500


@pytest.fixture
def make() -> Iterator[Callable[..., Pipeline]]:
    pipelines: list[Pipeline] = []

    def make(**limits: float) -> Pipeline:
        pipelines.append(Pipeline("http://server", {**LIMITS, **limits}))
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        for lane in pipeline._shared.lanes.values():
            for pending in list(lane.pending.values()):
                pending.out.set_exception(BackendError("the test is over"))
        pipeline.close()


def same(value: Any) -> Any:
    return value


def failing(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def test_operations_start_in_the_order_they_were_requested(make: Callable[..., Pipeline]) -> None:
    pipeline, started = make(), list[int]()
    gate = threading.Event()

    def start(number: int) -> int:
        if number == 0:
            gate.wait(60)
        started.append(number)
        return number

    pending = [pipeline.submit("step", lambda n=n: start(n), same) for n in range(20)]
    gate.set()
    assert [operation.result(60) for operation in pending] == list(range(20))
    assert started == list(range(20))


def test_the_next_operation_is_sent_before_the_last_one_has_ended(make: Callable[..., Pipeline]) -> None:
    pipeline, sent = make(), [Future[int](), Future[int]()]
    second_was_sent = threading.Event()

    def second() -> Future[int]:
        second_was_sent.set()
        return sent[1]

    first = pipeline.submit("backward", lambda: sent[0], same)
    step = pipeline.submit("step", second, same)
    assert second_was_sent.wait(60)
    sent[1].set_result(2)
    sent[0].set_result(1)
    assert (first.result(60), step.result(60)) == (1, 2)


def test_a_deadline_starts_again_with_every_operation_that_ends(
    make: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("evsys_sdk.backends.tinker.pipeline.time", SimpleNamespace(monotonic=lambda: now[0]))
    pipeline = make(train=60)
    sent = [Future[int]() for _ in range(4)]
    pending = [pipeline.submit("step", lambda f=f: f, same) for f in sent]
    for number, (future, operation) in enumerate(zip(sent, pending, strict=True)):
        now[0] += 40
        future.set_result(number)
        assert operation.result(60) == number  # the deadline starts again before the result is there


def test_a_lost_operation_breaks_the_client_and_everything_behind_it(make: Callable[..., Pipeline]) -> None:
    pipeline = make(train=0.2)
    sent = [Future[int](), Future[int]()]
    lost, behind = (pipeline.submit(f"step {n}", lambda f=f: f, same) for n, f in enumerate(sent))
    with pytest.raises(BackendError, match=r"http://server: step 0 made no progress for 0.2 s.*--resume"):
        lost.result(60)
    with pytest.raises(BackendError, match="step 1 made no progress"):
        behind.result(60)
    assert all(future.cancelled() for future in sent)
    with pytest.raises(BackendError, match=r"step 2 was not sent.*step 0 made no progress"):
        pipeline.submit("step 2", lambda: 1, same)


def test_an_error_of_the_server_breaks_only_what_changes_weights(make: Callable[..., Pipeline]) -> None:
    pipeline = make()
    with pytest.raises(BackendError, match="forward failed"):
        pipeline.submit("forward", failing(Broken("on fire")), same).result(60)
    with pytest.raises(BackendError, match="optim_step was refused: too large"):
        pipeline.submit("optim_step", failing(Refused("too large")), same, changes_weights=True).result(60)
    assert pipeline.submit("forward", lambda: 1, same).result(60) == 1
    with pytest.raises(BackendError, match="optim_step failed: on fire"):
        pipeline.submit("optim_step", failing(Broken("on fire")), same, changes_weights=True).result(60)
    with pytest.raises(BackendError, match="forward was not sent"):
        pipeline.submit("forward", lambda: 1, same)


def test_what_a_users_loss_raises_comes_out_as_it_is(make: Callable[..., Pipeline]) -> None:
    pipeline = make()
    mine = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError, match="mine"):
        pipeline.submit("loss", failing(LossFunctionError(mine)), same, changes_weights=True).result(60)
    assert pipeline.broken is None


def test_late_samples_fail_alone(make: Callable[..., Pipeline]) -> None:
    pipeline, slow = make(sample=0.2), Future[int]()
    with pytest.raises(BackendError, match="sample made no progress"):
        pipeline.submit_now("sample", lambda: slow, same).result(60)
    assert slow.cancelled()
    assert pipeline.submit_now("sample", lambda: 3, same).result(60) == 3


def test_waiting_inside_of_a_start_ends_with_the_deadline(make: Callable[..., Pipeline]) -> None:
    pipeline, never = make(train=0.2), Future[int]()

    class Sent:
        def future(self) -> Future[int]:
            return never

    with pytest.raises(BackendError, match="custom made no progress"):
        pipeline.submit("custom", lambda: pipeline.wait(Sent()), same).result(60)
    assert never.cancelled()


def test_a_refused_key_names_what_to_set(make: Callable[..., Pipeline]) -> None:
    class Unauthorised(Exception):
        status_code = 401
        body = {"error": "who are you"}

    with pytest.raises(EvsysAuthError, match=r"401: who are you.*api_key_env"):
        make().submit("opening the session", failing(Unauthorised()), same).result(60)


def test_a_closed_pipeline_refuses(make: Callable[..., Pipeline]) -> None:
    pipeline = make()
    assert pipeline.submit("step", lambda: 1, same).result(60) == 1
    pipeline.close()
    pipeline.close()
    with pytest.raises(BackendError, match="closed"):
        pipeline.submit("step", lambda: 1, same)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # about forking with threads, which is the point
def test_a_forked_process_is_reported(make: Callable[..., Pipeline]) -> None:
    pipeline = make()
    assert pipeline.submit("step", lambda: 1, same).result(60) == 1
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            pipeline.submit("step", lambda: 1, same)
        except BackendError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        message = answer.read().decode()
    os.waitpid(child, 0)
    assert "forked" in message
    assert "spawn" in message
