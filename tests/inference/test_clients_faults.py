"""Whatever a server does, a call ends in an answer or in the documented error, after the right number of requests."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.errors import EvsysAuthError
from evsys_sdk.inference.errors import InferenceError

from .conftest import SECRET
from .stand_in import Reply

if TYPE_CHECKING:
    from .conftest import Provider

ASK: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0}
HELLO = [{"role": "user", "content": "hello"}]


async def failure_of(provider: Provider, reply: Reply, **params: Any) -> InferenceError:
    """The error of a call to a server that only ever answers with `reply`."""
    provider.server.answer = lambda _: reply
    client = provider.make(**params)
    with pytest.raises(InferenceError) as caught:
        await client.complete(HELLO, **ASK)
    assert client.totals.failures == 1
    assert client.totals.completions == 0
    assert client.totals.requests == len(provider.server.seen)
    return caught.value


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(429, {"error": {"message": "slow down"}}), "rate_limited"),
        (Reply(500, {"error": {"message": "oops"}}), "server"),
        (Reply(502, raw=b"<html>Bad gateway</html>"), "server"),
        (Reply(503, {"error": {"message": "busy"}}), "overloaded"),
        (Reply(529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}), "overloaded"),
        (Reply(408, raw=b""), "timeout"),
        (Reply(200, raw=b'{"choices": [{"mess'), "bad_response"),
        (Reply(200, raw=b"\x00\xff garbage"), "bad_response"),
        (Reply(200, raw=b""), "bad_response"),
        (Reply(200, raw=b"[1, 2]"), "bad_response"),
        (Reply(200, {"choices": [{"message": {"content": 5}}], "content": [5], "candidates": [5]}), "bad_response"),
        (Reply(fault="reset"), "connection"),
        (Reply(200, {"id": 1}, fault="truncate"), "connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.status}{value.fault}",
)
async def test_what_may_pass_is_tried_again_and_then_given_up(provider: Provider, reply: Reply, kind: str) -> None:
    error = await failure_of(provider, reply)
    assert error.kind == kind
    assert error.attempts == 3
    assert len(provider.server.seen) == 3
    assert not error.retryable, "a caller's own retries must not multiply ours"
    assert "gave up after attempt 3 of 3" in str(error)


async def test_an_answer_without_any_choice_is_not_an_answer(provider: Provider) -> None:
    error = await failure_of(provider, Reply(200, {"choices": []}))
    assert error.kind == "bad_response"
    assert len(provider.server.seen) == 3


@pytest.mark.parametrize("fault", ["hang", "drip"])
async def test_one_attempt_has_a_limit_however_the_server_fills_the_time(provider: Provider, fault: str) -> None:
    reply = Reply(200, {"slow": "x" * 1000}, fault=fault)
    error = await failure_of(provider, reply, timeout_s=1.0, attempts=1)
    assert error.kind == "timeout"
    assert error.retryable
    assert len(provider.server.seen) == 1
    assert "Raise timeout_s" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "invalid_request_error", "messages: roles must alternate", "bad_request"),
        (404, "not_found_error", "The model `x` does not exist", "not_found"),
        (422, "", "Unprocessable", "bad_request"),
        (302, "", "moved", "not_found"),
        (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens", "context_length"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "context_length"),
        (400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens", "context_length"),
        (429, "insufficient_quota", "You exceeded your current quota", "quota"),
        (400, "invalid_request_error", "Your credit balance is too low to access the API", "quota"),
        (402, "billing_error", "Payment required", "quota"),
    ],
)
async def test_what_cannot_pass_fails_at_once(
    provider: Provider, status: int, code: str, message: str, kind: str
) -> None:
    error = await failure_of(provider, Reply(status, provider.problem(message, code)))
    assert error.kind == kind
    assert error.status == status
    assert len(provider.server.seen) == 1
    assert message in str(error)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_names_its_variable_and_never_itself(
    provider: Provider, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.server.answer = lambda _: Reply(status, provider.problem(f"Incorrect API key provided: {SECRET}"))
    client = provider.make()
    with pytest.raises(EvsysAuthError, match="The key came from STAND_IN_KEY") as caught:
        await client.complete(HELLO, **ASK)
    assert len(provider.server.seen) == 1
    assert SECRET not in f"{caught.value!r} {client!r} {vars(caught.value)}"
    assert SECRET not in caplog.text


async def test_no_message_or_log_line_repeats_the_key(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = Reply(500, provider.problem(f"cannot handle key {SECRET}", code=SECRET))
    provider.server.script = [echo, Reply(200, raw=f"garbage {SECRET}".encode()), echo]
    client = provider.make()
    with pytest.raises(InferenceError) as caught:
        await client.complete(HELLO, **ASK)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error.args}"
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text
    assert "attempt 2 of 3 failed" in caplog.text


async def test_it_continues_after_a_fault_and_counts_every_request(provider: Provider) -> None:
    provider.server.script = [Reply(500, {}), Reply(fault="reset"), Reply(429, {}, {"retry-after": "0"})]
    client = provider.make(attempts=4)
    [completion] = await client.complete(HELLO, **ASK)
    assert completion.text == "You said: hello"
    assert client.totals.requests == 4
    assert client.totals.completions == 1
    assert client.totals.failures == 0


async def test_a_server_that_wants_more_patience_than_the_deadline_is_not_waited_for(provider: Provider) -> None:
    error = await failure_of(provider, Reply(429, {}, {"retry-after": "3600"}), deadline_s=60)
    assert error.retry_after == 3600
    assert len(provider.server.seen) == 1
    assert "deadline of 60 s" in str(error)


async def test_the_server_may_say_itself_whether_to_try_again(provider: Provider) -> None:
    provider.server.script = [Reply(400, {}, {"x-should-retry": "true"}), Reply(503, {}, {"x-should-retry": "false"})]
    client = provider.make()
    with pytest.raises(InferenceError) as caught:
        await client.complete(HELLO, **ASK)
    assert caught.value.status == 503
    assert len(provider.server.seen) == 2


async def test_a_server_that_is_not_there_is_a_connection_failure(provider: Provider) -> None:
    client = provider.make(base_url="http://127.0.0.1:9", attempts=2)
    with pytest.raises(InferenceError, match="Check the address") as caught:
        await client.complete(HELLO, **ASK)
    assert caught.value.kind == "connection"
    assert client.totals.requests == 2


async def test_a_redirect_is_not_followed_because_the_key_would_go_with_it(provider: Provider) -> None:
    target = provider.server.url + "/elsewhere"
    await failure_of(provider, Reply(307, {}, {"location": target}))
    assert len(provider.server.seen) == 1


async def test_no_more_than_the_allowed_number_of_requests_run_at_once(provider: Provider) -> None:
    together = threading.Barrier(2, timeout=60)  # every request waits for another one
    provider.server.before_reply = together.wait
    client = provider.make(concurrency=2)
    completions = await asyncio.gather(*(client.complete(HELLO, **ASK) for _ in range(6)))
    assert len(completions) == 6
    assert provider.server.most_busy == 2


async def test_a_cancelled_call_sends_nothing_more(provider: Provider) -> None:
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()
    provider.server.before_reply = lambda: loop.call_soon_threadsafe(arrived.set)
    provider.server.answer = lambda _: Reply(fault="hang")
    client = provider.make(concurrency=1)
    task = asyncio.create_task(client.complete(HELLO, **ASK))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    provider.server.answer = lambda request: Reply(500, {})
    with pytest.raises(InferenceError):  # the place of the cancelled call is free again
        await client.complete(HELLO, **ASK)
    assert len(provider.server.seen) == 4


def test_errors_survive_pickling() -> None:
    error = InferenceError("no", kind="quota", status=429, retry_after=2.0, attempts=3)
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(again) == "no"
    assert again.to_dict() == {
        "error": "InferenceError", "message": "no", "kind": "quota", "status": 429, "attempts": 3,
    }  # fmt: skip
