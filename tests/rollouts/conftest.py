import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutRequest
from evsys_sdk.rollouts.environment import Environment, NoEnvironment
from evsys_sdk.rollouts.harness import Harness
from evsys_sdk.rollouts.rollout import Message, Policy, Rollout, Turn, opening

from ..mock_clients import make_client

__all__ = ["make_client"]


class SpeakingPolicy:
    """Says the same thing to everything, in two tokens."""

    def __init__(self, text: str = "yes") -> None:
        self.text = text

    async def act(self, messages: Sequence[Message], *, tools: Any = None) -> Turn:
        return Turn({"role": "assistant", "content": self.text}, [1, 2], [3, 4], [-0.1, -0.2])


class Script:
    """An agent whose `run` is any function of a task, a policy and an environment."""

    def __init__(self, run: Callable[[HarborTask, Policy, Environment], Awaitable[Any]]) -> None:
        self._run = run

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> Any:
        return await self._run(task, policy, environment)


async def ask_once(task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
    messages = opening(task)
    return [*messages, (await policy.act(messages)).message]


def skip_ahead(seconds: float) -> None:
    """Move the clock of the running event loop: what waits for an earlier time is due now."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


async def reward_one(task: HarborTask, rollout: Rollout, environment: Environment) -> VerificationResult:
    return VerificationResult(1.0, {"said": rollout.completion})


@pytest.fixture
def make_task() -> Callable[..., HarborTask]:
    def make(task_id: str = "t", instruction: str = "say yes", **metadata: Any) -> HarborTask:
        return HarborTask(task_id, instruction, InProcessVerifier("exact_match", "yes"), metadata)

    return make


@pytest.fixture
def make_request(make_task: Callable[..., HarborTask]) -> Callable[..., RolloutRequest]:
    """A request that succeeds; a test replaces the part that is to go wrong."""

    def make(
        task_id: str = "t",
        sample: int = 0,
        *,
        run: Any = ask_once,
        policy: Any = None,
        verify: Any = reward_one,
        environment: Callable[[], Any] = NoEnvironment,
    ) -> RolloutRequest:
        harness = Harness(agent=lambda: Script(run), environment=environment)
        return RolloutRequest(make_task(task_id), sample, policy or SpeakingPolicy(), harness, verify)

    return make


@contextmanager
def closing_engines(engine: Callable[[EngineLimits], Any]) -> Iterator[Callable[..., Any]]:
    """A function that opens engines with limits; they are closed at the end."""
    opened: list[Any] = []

    def make(**limits: Any) -> Any:
        opened.append(engine(EngineLimits(**limits)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def make_engine() -> Iterator[Callable[..., InlineEngine]]:
    """Engines that are closed at the end of the test."""
    with closing_engines(InlineEngine) as make:
        yield make
