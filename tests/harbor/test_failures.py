"""What went wrong elsewhere has no reward; what the policy ran out of is scored on what it has done."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.environment import NoEnvironment, SandboxError
from evsys_sdk.rollouts.policy import ContextFullError
from evsys_sdk.rollouts.rollout import Rollout, opening

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor

type Run = Callable[..., Rollout]


@pytest.fixture
def run(make_engine: Callable[..., Any], make_request: Callable[..., Any]) -> Run:
    def run(*, limits: dict[str, Any] | None = None, **parts: Any) -> Rollout:
        [rollout] = make_engine(**(limits or {"attempts": 1})).submit([make_request(**parts)]).result()
        return rollout

    return run


def failed_with(rollout: Rollout, *words: str) -> None:
    assert (rollout.status, rollout.reward) == ("infra", None)
    for word in words:
        assert word in (rollout.error or "")


def test_a_verifier_that_raises_is_a_failure_and_keeps_the_turns(run: Run) -> None:
    async def verify(*_: Any) -> VerificationResult:
        raise RuntimeError("no judge")

    rollout = run(verify=verify)
    failed_with(rollout, "the verifier failed: RuntimeError: no judge")
    assert len(rollout.turns) == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_not_a_number_is_a_failure(run: Run, reward: Any) -> None:
    async def verify(*_: Any) -> VerificationResult:
        return VerificationResult(reward)

    failed_with(run(verify=verify), "the verifier returned the reward", str(reward))


def test_a_verifier_that_hangs_is_a_failure(run: Run) -> None:
    async def verify(*_: Any) -> VerificationResult:
        await asyncio.sleep(60)
        raise AssertionError

    failed_with(run(verify=verify, limits={"attempts": 1, "verify_timeout_s": 0.1}), "verifier", "0.1")


def test_an_agent_that_hangs_is_stopped_and_scored_on_what_it_did(run: Run) -> None:
    async def hang(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        await asyncio.sleep(60)

    rollout = run(run=hang, limits={"attempts": 1, "timeout_s": 3.0})
    assert (rollout.status, rollout.reward) == ("truncated", 1.0)
    assert rollout.error == "the agent was stopped after 3 s"
    assert rollout.messages[-1]["content"] == "yes"


def test_an_agent_that_hangs_before_its_first_turn_is_a_failure(run: Run) -> None:
    async def hang(task: Any, policy: Any, environment: Any) -> Any:
        await asyncio.sleep(60)

    failed_with(run(run=hang, limits={"attempts": 1, "timeout_s": 0.2}), "stopped after 0.2 s")


def test_a_full_context_truncates(run: Run) -> None:
    async def talk(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        raise ContextFullError("too long")

    rollout = run(run=talk)
    assert (rollout.status, rollout.reward, rollout.error) == ("truncated", 1.0, "too long")


def test_an_agent_that_raises_is_a_failure(run: Run) -> None:
    async def stumble(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        raise ValueError("oops")

    failed_with(run(run=stumble), "the agent failed: ValueError: oops")


def test_a_time_limit_of_the_agents_own_is_not_taken_for_ours(run: Run) -> None:
    async def stumble(task: Any, policy: Any, environment: Any) -> Any:
        await policy.act(opening(task))
        raise TimeoutError("the model server is slow")

    failed_with(run(run=stumble), "the model server is slow")


def test_an_agent_that_never_asks_is_a_failure(run: Run) -> None:
    async def idle(task: Any, policy: Any, environment: Any) -> Any:
        return []

    failed_with(run(run=idle), "no request to the policy")


def test_a_model_failure_that_the_agent_swallows_is_a_failure(run: Run) -> None:
    class Once:
        calls = 0

        async def act(self, messages: Any, *, tools: Any = None) -> Any:
            from evsys_sdk.rollouts.rollout import Turn

            self.calls += 1
            if self.calls > 1:
                raise ConnectionError("gone")
            return Turn({"role": "assistant", "content": "yes"})

    async def careless(task: Any, policy: Any, environment: Any) -> Any:
        messages = opening(task)
        await policy.act(messages)
        try:
            await policy.act(messages)
        except ConnectionError:
            return messages

    failed_with(run(run=careless, policy=Once()), "the model failed: ConnectionError: gone")


def test_a_sandbox_that_cannot_start_is_a_failure_and_tried_again(run: Run) -> None:
    starts: list[int] = []

    class Broken(NoEnvironment):
        async def start(self) -> None:
            starts.append(1)
            raise SandboxError("no namespaces here")

    rollout = run(environment=Broken, limits={"attempts": 3})
    failed_with(rollout, "the environment did not start", "no namespaces here")
    assert (rollout.attempts, len(starts)) == (3, 3)


def test_a_second_attempt_can_succeed(run: Run) -> None:
    starts: list[int] = []

    class Shaky(NoEnvironment):
        async def start(self) -> None:
            starts.append(1)
            if len(starts) == 1:
                raise SandboxError("busy")

    rollout = run(environment=Shaky, limits={"attempts": 2})
    assert (rollout.status, rollout.reward, rollout.attempts) == ("ok", 1.0, 2)


def test_one_failure_leaves_the_others_alone(make_engine: Any, make_request: Any) -> None:
    class Broken(NoEnvironment):
        def __init__(self) -> None:
            raise RuntimeError("cannot be made")

    good, bad = make_request(), make_request(environment=Broken)
    rollouts = make_engine(attempts=1, concurrency=2).submit([good, bad, make_request()]).result()
    assert [rollout.status for rollout in rollouts] == ["ok", "infra", "ok"]
    assert "cannot be made" in rollouts[1].error


def test_an_environment_is_stopped_whatever_happens(run: Run) -> None:
    stopped: list[int] = []

    class Watched(NoEnvironment):
        async def stop(self) -> None:
            stopped.append(1)

    async def stumble(task: Any, policy: Any, environment: Any) -> Any:
        raise ValueError("oops")

    failed_with(run(run=stumble, environment=Watched))
    assert stopped


def test_an_environment_of_harbors_own_that_is_not_there_is_a_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.registry import get_environment

    monkeypatch.setenv("PATH", "/nonexistent")  # wherever there is a container engine, this test must not find it
    docker = get_environment("harbor:docker")
    failed_with(run(environment=lambda: docker(docker_image="none/such")), "failed")


def test_an_environment_type_that_harbor_does_not_have_is_reported_by_name(run: Run) -> None:
    from evsys_sdk.registry import get_environment

    failed_with(run(environment=get_environment("harbor:dokker")), "the trial did not start", "dokker")
