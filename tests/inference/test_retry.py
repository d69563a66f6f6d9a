"""Trying again: which errors, how often, how long in between, and what is reported."""

from __future__ import annotations

import logging
import threading
from typing import Any

import httpx
import pytest

from evsys_sdk.errors import DataError, EvsysAuthError
from evsys_sdk.inference.errors import InferenceError
from evsys_sdk.inference.retry import (
    RetryFailure,
    RetryReport,
    call_with_retry,
    call_with_retry_async,
    is_retryable,
)


class Flaky:
    """Fails with each of the errors in turn, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def asynchronous(self) -> str:
        return self()


def passing(**more: Any) -> InferenceError:
    return InferenceError("try later", kind="overloaded", **more)


def test_a_call_that_succeeds_is_made_once() -> None:
    report, call = RetryReport(), Flaky()
    assert call_with_retry(call, report=report) == "done"
    assert call.calls == 1
    assert report.to_dict() == {"calls": 1, "retries": 0, "total_failures": 0, "failures": []}


def test_waits_double_up_to_the_longest() -> None:
    waits: list[float] = []
    call = Flaky(*(passing() for _ in range(5)))
    call_with_retry(call, attempts=6, base_delay=1, max_delay=6, jitter=False, sleep=waits.append)
    assert waits == [1, 2, 4, 6, 6]


def test_jitter_spreads_each_wait_over_all_of_it() -> None:
    waits: list[float] = []
    for _ in range(200):
        call_with_retry(Flaky(passing()), base_delay=8, sleep=waits.append)
    assert min(waits) < 2
    assert max(waits) > 6
    assert all(0 <= wait <= 8 for wait in waits)


def test_jitter_does_not_use_up_the_random_numbers_of_an_experiment() -> None:
    import random

    random.seed(7)
    expected = random.random()
    random.seed(7)
    call_with_retry(Flaky(passing()), sleep=lambda _: None)
    assert random.random() == expected


@pytest.mark.parametrize("jitter", [True, False])
def test_what_the_server_asks_for_is_never_undercut(jitter: bool) -> None:
    waits: list[float] = []
    call_with_retry(Flaky(passing(retry_after=90)), base_delay=2, max_delay=5, jitter=jitter, sleep=waits.append)
    assert 90 <= waits[0] <= 92


def test_many_attempts_do_not_overflow() -> None:
    waits: list[float] = []
    call_with_retry(Flaky(*(passing() for _ in range(1200))), attempts=1201, jitter=False, sleep=waits.append)
    assert waits[-1] == 60


def test_giving_up_reports_the_attempts_and_the_last_error() -> None:
    report, call = RetryReport(), Flaky(passing(), InferenceError("broken", kind="server", status=500))
    with pytest.raises(InferenceError) as caught:
        call_with_retry(call, attempts=2, what="task 7", report=report, sleep=lambda _: None)
    assert str(caught.value) == (
        "task 7: gave up after attempt 2 of 2 because it failed 2 times. The last error: broken"
    )
    assert (caught.value.kind, caught.value.status, caught.value.attempts) == ("server", 500, 2)
    assert report.total_failures == 1
    assert report.failures == [RetryFailure("task 7", 2, "InferenceError: broken")]
    assert report.retries == 1


def test_nested_retries_do_not_multiply() -> None:
    call = Flaky(*(passing() for _ in range(99)))

    def inner() -> str:
        return call_with_retry(call, attempts=3, sleep=lambda _: None)

    with pytest.raises(InferenceError):
        call_with_retry(inner, attempts=5, sleep=lambda _: None)
    assert call.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        InferenceError("no", kind="bad_request", status=400),
        InferenceError("no", kind="context_length"),
        InferenceError("no", kind="quota", status=429),
        EvsysAuthError("no key"),
        DataError("bad row"),
        ValueError("a bug"),
        KeyError("a bug"),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'kind', '')}",
)
def test_what_cannot_pass_is_raised_at_once_and_unchanged(error: Exception) -> None:
    report, call = RetryReport(), Flaky(error)
    with pytest.raises(type(error)) as caught:
        call_with_retry(call, report=report, sleep=lambda _: pytest.fail("waited"))
    assert caught.value is error
    assert call.calls == 1
    assert [failure.attempts for failure in report.failures] == [1]


class ApiError(Exception):
    """As the SDKs of providers raise them."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(429), True),
        (ApiError(529), True),
        (ApiError(400), False),
        (ApiError(401), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (httpx.ReadTimeout("slow"), True),
        (httpx.RemoteProtocolError("cut"), True),
        (httpx.InvalidURL("x"), False),
        (FileNotFoundError(), False),
        (RuntimeError("a bug"), False),
    ],
    ids=lambda value: value if isinstance(value, bool) else f"{type(value).__name__}{value}",
)
def test_errors_of_other_packages_are_judged_by_status_and_kind(error: Exception, expected: bool) -> None:
    assert is_retryable(error) is expected


def test_an_error_of_another_package_keeps_its_type_when_given_up() -> None:
    with pytest.raises(ApiError) as caught:
        call_with_retry(Flaky(ApiError(500), ApiError(503)), attempts=2, sleep=lambda _: None)
    assert caught.value.status_code == 503
    assert caught.value.__notes__ == ["the call: gave up after attempt 2 of 2 because it failed 2 times"]


@pytest.mark.parametrize("retry_on", [ValueError, (ValueError, KeyError), lambda error: "now" in str(error)])
def test_the_caller_may_choose_what_is_tried_again(retry_on: Any) -> None:
    call = Flaky(ValueError("not now"))
    assert call_with_retry(call, retry_on=retry_on, sleep=lambda _: None) == "done"
    assert call.calls == 2


def test_no_attempt_begins_after_the_deadline() -> None:
    call = Flaky(*(passing() for _ in range(9)))
    waits: list[float] = []
    with pytest.raises(InferenceError, match="would begin after the deadline of 3 s"):
        call_with_retry(call, attempts=9, base_delay=2, jitter=False, deadline=3, sleep=waits.append)
    assert waits == [2]  # the next would be 4


def test_a_call_needs_at_least_one_attempt() -> None:
    with pytest.raises(ValueError, match="attempts is 0"):
        call_with_retry(Flaky(), attempts=0)


def test_an_interruption_is_not_an_error_to_try_again() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_with_retry(interrupted, retry_on=lambda _: True, sleep=lambda _: pytest.fail("waited"))


async def test_the_asynchronous_form_behaves_the_same() -> None:
    report, call, waits = RetryReport(), Flaky(passing(), passing(retry_after=7)), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    result = await call_with_retry_async(call.asynchronous, jitter=False, report=report, sleep=sleep)
    assert result == "done"
    assert waits == [1, 7]
    assert report.to_dict() == {"calls": 1, "retries": 2, "total_failures": 0, "failures": []}


async def test_the_asynchronous_form_gives_up_the_same() -> None:
    report, call = RetryReport(), Flaky(passing(), passing())
    with pytest.raises(InferenceError, match="gave up after attempt 2 of 2"):
        await call_with_retry_async(call.asynchronous, attempts=2, base_delay=0, report=report, what="row 3")
    assert [failure.what for failure in report.failures] == ["row 3"]


def test_keys_in_the_messages_of_others_reach_neither_report_nor_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ACME_API_KEY", "key-0123456789")
    report, call = RetryReport(), Flaky(*(ConnectionError("refused key-0123456789") for _ in range(2)))
    with pytest.raises(ConnectionError):
        call_with_retry(call, attempts=2, report=report, sleep=lambda _: None)
    assert report.failures[0].last_error == "ConnectionError: refused [redacted]"
    assert "key-0123456789" not in caplog.text
    assert "[redacted]" in caplog.text


def test_a_report_can_be_shared_by_threads() -> None:
    report = RetryReport()

    def many() -> None:
        for number in range(200):
            errors = [ValueError("no")] if number % 2 else []
            try:
                call_with_retry(Flaky(*errors), report=report)
            except ValueError:
                continue

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert report.calls == 800
    assert report.total_failures == 400
