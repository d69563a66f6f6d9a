"""What the engine makes of agents, models, verifiers and environments that work, and of all that do not."""

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import InlineEngine, RolloutRequest
from evsys_sdk.rollouts.environment import NoEnvironment, SandboxError
from evsys_sdk.rollouts.policy import ContextFullError
from evsys_sdk.rollouts.rollout import AgentResult, Rollout, TruncatedError, Turn, opening

from .conftest import skip_ahead

type MakeEngine = Callable[..., InlineEngine]
type MakeRequest = Callable[..., RolloutRequest]


def raising(error: BaseException) -> Callable[..., Any]:
    async def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


class FailingPolicy:
    """Fails a number of times, then answers."""

    def __init__(self, error: Exception, times: int = 10**9) -> None:
        self.error, self.left = error, times

    async def act(self, messages: Any, *, tools: Any = None) -> Turn:
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return Turn({"role": "assistant", "content": "yes"}, [1], [2], [-0.1])


class WatchedEnvironment(NoEnvironment):
    """Counts what happens to it, and fails on request."""

    def __init__(self, log: list[str], start: BaseException | None = None, stop: BaseException | None = None) -> None:
        self.log, self._start, self._stop = log, start, stop

    async def start(self) -> None:
        self.log.append("start")
        if self._start:
            raise self._start

    async def stop(self) -> None:
        self.log.append("stop")
        if self._stop:
            raise self._stop


def test_a_rollout_holds_its_messages_and_reward(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    [rollout] = make_engine().submit([make_request()]).result(60)
    assert (rollout.status, rollout.reward, rollout.error, rollout.attempts) == ("ok", 1.0, None, 1)
    assert rollout.info == {"said": "yes"}
    assert rollout.messages[-1] == {"role": "assistant", "content": "yes"}
    assert [turn.completion_tokens for turn in rollout.turns] == [[3, 4]]


AGENT_FAULTS = [
    RuntimeError("boom"),
    TimeoutError("the server took too long"),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(3),
    SandboxError("the sandbox is gone"),
]


@pytest.mark.parametrize("error", AGENT_FAULTS, ids=lambda error: type(error).__name__)
def test_an_agent_that_fails_is_retried_and_then_counted_without_a_reward(
    error: BaseException, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(attempts=3)
    failed, fine = engine.submit([make_request(run=raising(error)), make_request("other")]).result(60)
    assert (failed.status, failed.reward, failed.attempts) == ("infra", None, 3)
    assert type(error).__name__ in (failed.error or "")
    assert fine.status == "ok"
    assert engine.submit([make_request()]).result(60)[0].status == "ok"


@pytest.mark.parametrize("error", AGENT_FAULTS, ids=lambda error: type(error).__name__)
def test_a_verifier_that_fails_never_gives_a_reward(
    error: BaseException, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    [rollout] = make_engine().submit([make_request(verify=raising(error))]).result(60)
    assert (rollout.status, rollout.reward, rollout.attempts) == ("infra", None, 2)
    assert rollout.turns, "what was sampled stays in the record"


@pytest.mark.parametrize("verdict", [None, 1.0, VerificationResult(math.nan), VerificationResult(-math.inf)])
@pytest.mark.parametrize("reward", [None, "1"])
def test_a_missing_or_meaningless_reward_is_a_failure(
    verdict: Any, reward: Any, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    async def verify(*_: Any) -> Any:
        return VerificationResult(reward) if verdict is None else verdict

    [rollout] = make_engine(attempts=1).submit([make_request(verify=verify)]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "verifier" in (rollout.error or "")


def test_a_verifier_that_hangs_is_a_failure(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    async def verify(*_: Any) -> Any:
        await asyncio.sleep(3600)

    [rollout] = make_engine(verify_timeout_s=0.05).submit([make_request(verify=verify)]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)


def test_an_agent_that_hangs_is_scored_on_what_it_did(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    async def run(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        skip_ahead(100)
        await asyncio.sleep(3600)

    [rollout] = make_engine(timeout_s=90).submit([make_request(run=run)]).result(60)
    assert (rollout.status, rollout.reward, rollout.attempts) == ("truncated", 1.0, 1)
    assert "90 s" in (rollout.error or "")
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"]


def test_an_agent_that_swallows_its_time_limit_is_truncated_all_the_same(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    async def run(task: Any, policy: Any, environment: Any) -> Any:
        messages = [*opening(task), (await policy.act(opening(task))).message]
        skip_ahead(100)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return messages

    [rollout] = make_engine(timeout_s=90).submit([make_request(run=run)]).result(60)
    assert (rollout.status, rollout.reward) == ("truncated", 1.0)


def test_an_agent_that_hangs_before_it_asks_anything_is_a_failure(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    async def run(*_: Any) -> Any:
        await asyncio.sleep(3600)

    [rollout] = make_engine(timeout_s=0.05).submit([make_request(run=run)]).result(60)
    assert (rollout.status, rollout.reward, rollout.attempts) == ("infra", None, 2)


async def _says_nothing(*_: Any) -> list[Any]:
    return [{"role": "assistant", "content": "yes"}]


async def _returns_nothing(task: Any, policy: Any, environment: Any) -> None:
    await policy.act(opening(task))


@pytest.mark.parametrize(("run", "problem"), [(_says_nothing, "no request"), (_returns_nothing, "returned None")])
def test_an_agent_that_breaks_the_contract_is_a_failure(
    run: Any, problem: str, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    [rollout] = make_engine().submit([make_request(run=run)]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert problem in (rollout.error or "")


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError(), ValueError("no json")], ids=repr)
def test_a_model_that_fails_is_retried(error: Exception, make_engine: MakeEngine, make_request: MakeRequest) -> None:
    once, always = FailingPolicy(error, times=1), FailingPolicy(error)
    back, gone = make_engine().submit([make_request(policy=once), make_request(policy=always)]).result(60)
    assert (back.status, back.reward, back.attempts) == ("ok", 1.0, 2)
    assert (gone.status, gone.reward, gone.attempts) == ("infra", None, 2)


def test_a_model_that_answers_garbage_is_a_failure(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    class Garbage:
        async def act(self, messages: Any, *, tools: Any = None) -> Any:
            return "yes"

    [rollout] = make_engine().submit([make_request(policy=Garbage())]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "'yes' instead of a Turn" in (rollout.error or "")


async def _shrugs(task: Any, policy: Any, environment: Any) -> list[Any]:
    messages = opening(task)
    for _ in range(2):
        try:
            messages.append((await policy.act(messages)).message)
        except Exception:
            messages.append({"role": "assistant", "content": ""})
    return messages


def test_a_model_failure_that_the_agent_swallows_is_no_bad_answer(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    class BreaksDown(FailingPolicy):
        async def act(self, messages: Any, *, tools: Any = None) -> Turn:
            if len(messages) == 1:
                return Turn({"role": "assistant", "content": "hm"}, [1], [2], [-0.1])
            return await super().act(messages)

    [rollout] = make_engine().submit([make_request(run=_shrugs, policy=BreaksDown(OSError("gone")))]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "gone" in (rollout.error or "")


def test_a_model_failure_that_the_agent_overcomes_does_no_harm(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    policy = FailingPolicy(OSError("gone"), times=1)
    [rollout] = make_engine().submit([make_request(run=_shrugs, policy=policy)]).result(60)
    assert (rollout.status, rollout.reward, len(rollout.turns)) == ("ok", 1.0, 1)


@pytest.mark.parametrize("error", [ContextFullError("too long"), TruncatedError("out of turns")])
def test_a_conversation_that_cannot_continue_is_truncated_and_scored(
    error: Exception, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    async def run(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        raise error

    [rollout] = make_engine().submit([make_request(run=run)]).result(60)
    assert (rollout.status, rollout.reward, rollout.error) == ("truncated", 1.0, str(error))


def test_an_answer_that_was_cut_off_is_truncated(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    class Endless:
        async def act(self, messages: Any, *, tools: Any = None) -> Turn:
            return Turn({"role": "assistant", "content": "and and"}, [1], [2], [-0.1], stop_reason="length")

    [rollout] = make_engine().submit([make_request(policy=Endless())]).result(60)
    assert (rollout.status, rollout.reward) == ("truncated", 1.0)


def test_an_environment_that_cannot_start_is_a_failure_and_is_cleared_away(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    log: list[str] = []
    request = make_request(environment=lambda: WatchedEnvironment(log, start=SandboxError("no bwrap here")))
    [rollout] = make_engine().submit([request]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)
    assert "no bwrap here" in (rollout.error or "")
    assert log == ["start", "stop"] * 2


def test_an_environment_that_hangs_at_its_start_is_a_failure(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    class Slow(NoEnvironment):
        async def start(self) -> None:
            await asyncio.sleep(3600)

    [rollout] = make_engine(environment_timeout_s=0.05).submit([make_request(environment=Slow)]).result(60)
    assert (rollout.status, rollout.reward) == ("infra", None)


@pytest.mark.parametrize("error", [OSError("busy"), SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_an_environment_that_cannot_stop_leaves_the_reward_and_a_warning(
    error: BaseException,
    make_engine: MakeEngine,
    make_request: MakeRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = make_request(environment=lambda: WatchedEnvironment([], stop=error))
    with caplog.at_level(logging.WARNING):
        rollouts = make_engine().submit([request, make_request("other")]).result(60)
    assert [(rollout.status, rollout.reward) for rollout in rollouts] == [("ok", 1.0)] * 2
    assert "did not stop" in caplog.text


def test_the_environment_is_stopped_after_every_outcome(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    log: list[str] = []
    requests = [
        make_request(run=run, verify=verify, environment=lambda: WatchedEnvironment(log))
        for run, verify in (
            (_shrugs, raising(OSError())),
            (raising(OSError()), _says_nothing),
            (_shrugs, _says_nothing),
        )
    ]
    make_engine(attempts=1).submit(requests).result(60)
    assert sorted(log) == ["start"] * 3 + ["stop"] * 3


def test_results_come_in_the_order_of_the_requests(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    async def run(task: Any, policy: Any, environment: Any) -> Any:
        await asyncio.sleep((20 - int(task.task_id)) / 1000)
        return [(await policy.act(opening(task))).message]

    rollouts = make_engine(concurrency=7).submit([make_request(str(i), i, run=run) for i in range(20)]).result(60)
    assert [(rollout.task_id, rollout.sample) for rollout in rollouts] == [(str(i), i) for i in range(20)]


def test_no_more_rollouts_run_at_once_than_allowed(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    running, most, full = 0, 0, asyncio.Event()

    async def run(task: Any, policy: Any, environment: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running -= 1
        return [(await policy.act(opening(task))).message]

    engine = make_engine(concurrency=3)
    both = [engine.submit([make_request(run=run) for _ in range(10)]) for _ in range(2)]  # over all that is submitted
    assert [len(operation.result(60)) for operation in both] == [10, 10]
    assert most == 3


def test_no_requests_give_no_rollouts(make_engine: MakeEngine) -> None:
    assert make_engine().submit([]).result(60) == []


async def test_a_blocking_agent_does_not_stall_the_loop_that_waits_for_it(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    release = threading.Event()

    async def run(task: Any, policy: Any, environment: Any) -> Any:
        assert release.wait(60)  # blocks the engine's loop, as a careless agent does
        return [(await policy.act(opening(task))).message]

    pending = asyncio.ensure_future(make_engine().run([make_request(run=run)]))
    await asyncio.sleep(0.01)
    assert not pending.done()
    release.set()
    assert (await pending)[0].status == "ok"


def engine_threads() -> set[threading.Thread]:
    """Loops and their workers; earlier tests of this process may have left workers."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(("evsys-rollouts", "asyncio_"))}


@pytest.mark.filterwarnings("error")
def test_closing_in_the_middle_cleans_up_and_leaves_nothing_running(make_request: MakeRequest) -> None:
    before = engine_threads()
    log: list[str] = []
    started = threading.Event()

    async def run(task: Any, policy: Any, environment: Any) -> Any:
        await asyncio.to_thread(time.sleep, 0)  # the loop now has a worker thread of its own
        started.set()
        await asyncio.sleep(3600)

    engine = InlineEngine()
    pending = engine.submit([make_request(run=run, environment=lambda: WatchedEnvironment(log)) for _ in range(5)])
    assert started.wait(60)
    engine.close()
    with pytest.raises(concurrent.futures.CancelledError):
        pending.result(60)
    assert log.count("start") == log.count("stop") > 0
    assert engine_threads() == before
    engine.close()


def test_an_engine_that_was_closed_starts_again(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    before = engine_threads()
    engine = make_engine()
    for _ in range(2):
        assert engine.submit([make_request()]).result(60)[0].status == "ok"
        engine.close()
    assert engine_threads() == before


async def test_cancelling_the_one_who_waits_cancels_the_rollouts(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    log: list[str] = []
    stopped = threading.Event()

    class Noted(WatchedEnvironment):
        async def stop(self) -> None:
            await super().stop()
            stopped.set()

    async def run(*_: Any) -> Any:
        await asyncio.sleep(3600)

    engine = make_engine()
    waiting = asyncio.ensure_future(engine.run([make_request(run=run, environment=lambda: Noted(log))]))
    while not log:
        await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stopped.wait(60)
    assert (await engine.run([make_request()]))[0].status == "ok"


def test_turns_that_come_after_the_end_do_not_change_a_rollout(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    late: list[Any] = []

    async def run(task: Any, policy: Any, environment: Any) -> Any:
        late.append(policy)
        return [(await policy.act(opening(task))).message]

    async def verify(task: Any, rollout: Rollout, environment: Any) -> VerificationResult:
        await late[0].act(opening(task))
        return VerificationResult(float(len(rollout.turns)))

    [rollout] = make_engine().submit([make_request(run=run, verify=verify)]).result(60)
    assert (rollout.reward, len(rollout.turns)) == (1.0, 1)


def returning(**fields: Any) -> Callable[..., Any]:
    """An agent that asks once and returns more than its conversation."""

    async def run(task: Any, policy: Any, environment: Any) -> AgentResult:
        messages = opening(task)
        return AgentResult([*messages, (await policy.act(messages)).message], **fields)

    return run


def test_the_reward_of_an_agent_wins_over_the_verifier(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    request = make_request(run=returning(reward=0.25, info={"moves": 7}), verify=raising(AssertionError("not asked")))
    [rollout] = make_engine().submit([request]).result(60)
    assert (rollout.status, rollout.reward) == ("ok", 0.25)
    assert rollout.info == {"reward_from": "agent", "moves": 7}
    assert rollout.messages[-1] == {"role": "assistant", "content": "yes"}


def test_an_agent_without_its_own_reward_is_verified_and_its_info_kept(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    [rollout] = make_engine().submit([make_request(run=returning(info={"moves": 7}))]).result(60)
    assert (rollout.reward, rollout.info) == (1.0, {"said": "yes", "moves": 7})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reward": "high"}, "the agent returned the reward 'high'"),
        ({"reward": math.nan}, "the agent returned the reward nan"),
        ({"info": [1]}, "the agent returned the info [1] instead of a dict"),
    ],
)
def test_what_an_agent_returns_is_checked(
    fields: dict[str, Any], said: str, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    [rollout] = make_engine().submit([make_request(run=returning(**fields))]).result(60)
    assert (rollout.status, rollout.reward, rollout.error) == ("infra", None, said)


def test_a_failure_in_the_users_code_says_where(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    [rollout] = make_engine().submit([make_request(run=raising(ValueError("no such room")))]).result(60)
    line = raising.__code__.co_firstlineno + 2
    assert rollout.error == "the agent failed: ValueError: no such room"
    assert rollout.error_at.endswith(f"test_engine.py:{line}")
    [ours] = make_engine().submit([make_request(run=returning(reward="high"))]).result(60)
    assert ours.error_at == "", "nothing of the user's was on the way"
