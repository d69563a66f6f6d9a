"""The rollout engine: many attempts at many tasks at once. No one else writes a rollout loop.

It owns concurrency, time limits, retries, cancellation and the collection of turns, and runs on an event loop of its
own, on its own thread, so that a slow agent cannot stall training.

    engine = InlineEngine(concurrency=32)
    rollouts = await engine.run([RolloutRequest(task, sample=0, policy=policy, harness=harness, verify=verify)])
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

from ..backends.future import Operation
from ..data.types import HarborTask
from ..errors import clean, place_in_user_code, show
from ..log import get_logger
from ..protocols import VerificationResult
from ..user_code import report_progress
from .environment import Environment
from .harness import Harness
from .policy import RecordingPolicy
from .rollout import AgentResult, Policy, Rollout, TruncatedError, Turn, read_agent_result

type Verify = Callable[[HarborTask, Rollout, Environment], Awaitable[VerificationResult]]
"""Scores a rollout while its environment still exists."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One attempt to make."""

    task: HarborTask
    sample: int
    policy: Policy
    harness: Harness
    verify: Verify


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much may happen at once, and for how long."""

    concurrency: int = 32
    timeout_s: float = 600.0
    """For the agent; one that is stopped by it is scored on what it has done so far."""
    verify_timeout_s: float = 120.0
    environment_timeout_s: float = 300.0
    """For the start of an environment, and again for its end."""
    attempts: int = 2
    """How often a rollout is tried before an infrastructure failure is final."""


class RolloutEngine(Protocol):
    """What recipes and benchmarks need of an engine."""

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start rollouts; their results come in the order of the requests."""
        ...

    def close(self) -> None:
        """Cancel what is running and release the thread."""
        ...


class InlineEngine:
    """Runs agents in this process: no files, about a millisecond of overhead."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        self.limits = limits or EngineLimits()
        self._loop: LoopThread | None = None
        self._slots: asyncio.Queue[str]

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        if self._loop is None or not self._loop.is_alive:
            self._open()
            self._loop = LoopThread("evsys-rollouts")
        return self._loop.submit(self._run_all(list(requests)), what=f"{len(requests)} rollouts")

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Submit and await."""
        return await self.submit(requests)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _open(self) -> None:
        # A queue belongs to the loop that first waits on it, so that a new loop needs a new one.
        self._slots = asyncio.LifoQueue()
        for number in range(self.limits.concurrency):
            self._slots.put_nowait(f"slot-{number}")

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        return list(await asyncio.gather(*(self._run_one(request) for request in requests)))

    async def _run_one(self, request: RolloutRequest) -> Rollout:
        number = 0
        while True:
            number += 1
            # A place for each attempt, not for the rollout: what failed lets others pass before it is tried again.
            slot = await self._slots.get()
            began = time.perf_counter()
            try:
                rollout = await self._attempt(request, slot)
            finally:
                self._slots.put_nowait(slot)
            report_progress()
            if rollout.status != "infra" or number >= self.limits.attempts:
                return replace(rollout, attempts=number, seconds=time.perf_counter() - began)

    async def _attempt(self, request: RolloutRequest, slot: str) -> Rollout:
        """One attempt from its start to its end; whatever goes wrong is part of the result."""
        return await attempt_rollout(request, self.limits)


async def attempt_rollout(request: RolloutRequest, limits: EngineLimits) -> Rollout:
    """One attempt from the start of the environment to its end; whatever goes wrong is part of the result."""
    recorder = RecordingPolicy(request.policy)
    try:
        async with _start(request.harness, limits) as environment:
            acted = await _act(request, limits, environment, recorder)
            return await _verify(acted, request, limits, environment)
    except _Failure as failure:
        turns, messages = list(recorder.turns), recorder.messages
        return Rollout(
            request.task.task_id, request.sample, "infra", None, turns, messages, str(failure), error_at=failure.at
        )


@contextlib.asynccontextmanager
async def _start(harness: Harness, limits: EngineLimits) -> AsyncGenerator[Environment]:
    """An environment for the length of a block; it is stopped however the block or the start ends."""
    with _blame("the environment cannot be made"):
        environment = harness.environment()
    try:
        with _blame("the environment did not start"):
            async with asyncio.timeout(limits.environment_timeout_s):
                await environment.start()
        yield environment
    finally:
        try:
            with _blame("an environment did not stop"):
                async with asyncio.timeout(limits.environment_timeout_s):
                    await environment.stop()
        except _Failure as failure:  # what was scored before remains right
            get_logger(__name__).warning("%s", failure)


async def _act(
    request: RolloutRequest, limits: EngineLimits, environment: Environment, recorder: RecordingPolicy
) -> Rollout:
    """What the agent did, not yet scored."""
    problem: str | None = None
    returned: Any = None
    timer = asyncio.timeout(limits.timeout_s)
    with _blame("the agent failed"):
        try:
            async with timer:
                returned = await request.harness.agent().run(request.task, recorder, environment)
        except TruncatedError as error:
            problem = str(error)
        except TimeoutError:
            if not timer.expired():  # somebody else's, e.g. a model server's
                raise
    if timer.expired():
        problem = f"the agent was stopped after {limits.timeout_s:g} s"
    # An agent may catch what the model raised and return half a conversation, which must not be scored as an answer.
    elif recorder.failure is not None and not isinstance(recorder.failure, TruncatedError):
        raise _Failure(f"the model failed: {_say(recorder.failure)}", recorder.failure)
    if not recorder.turns:
        raise _Failure(problem or "the agent never asked the policy for anything")
    try:
        result = AgentResult(recorder.messages) if problem else read_agent_result(returned)
    except ValueError as error:
        raise _Failure(str(error)) from None
    if problem is None and recorder.turns[-1].stop_reason == "length":
        problem = "the last answer was cut off at max_tokens"
    return Rollout(
        request.task.task_id,
        request.sample,
        status="ok" if problem is None else "truncated",
        reward=None if result.reward is None else float(result.reward),
        turns=list(recorder.turns),
        messages=result.messages,
        error=problem,
        info=result.info,
    )


async def _verify(rollout: Rollout, request: RolloutRequest, limits: EngineLimits, environment: Environment) -> Rollout:
    """The rollout with its reward: the agent's own, else what the verifier gives it."""
    if rollout.reward is not None:
        return replace(rollout, info={**rollout.info, "reward_from": "agent"})
    with _blame("the verifier failed"):
        async with asyncio.timeout(limits.verify_timeout_s):
            verdict = await request.verify(request.task, rollout, environment)
        reward: Any = verdict.reward
        if not isinstance(reward, Real) or not math.isfinite(reward):
            raise _Failure(f"the verifier returned the reward {show(reward)}")
        return replace(rollout, reward=float(reward), info={**rollout.info, **verdict.info})


_tried: dict[str, str | None] = {}
"""By harness: the arms of an experiment mostly share one."""


class _StandIn:
    """A policy that always says the same."""

    async def act(self, messages: Sequence[Any], *, tools: Any = None) -> Turn:
        return Turn({"role": "assistant", "content": "Done."}, [0], [0], [0.0], input_tokens=1, output_tokens=1)


async def _reward_nothing(*_: Any) -> VerificationResult:
    return VerificationResult(0.0, {})


def try_program(harness: Harness, task: HarborTask, limit_s: float) -> str | None:
    """Start a program once against a policy that always says the same; why it cannot be used, or None."""
    if not getattr(harness.agent(), "needs_gateway", False) or harness.engine != "inline":
        return None
    key = json.dumps(harness.description, sort_keys=True, default=str)
    if key not in _tried:
        engine = InlineEngine(EngineLimits(timeout_s=limit_s, attempts=1))
        try:
            [rollout] = engine.submit([RolloutRequest(task, 0, _StandIn(), harness, _reward_nothing)]).result()
        finally:
            engine.close()
        _tried[key] = rollout.error if rollout.status == "infra" else None
    return _tried[key]


class _Failure(Exception):
    """This attempt says nothing about the policy."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.at = place_in_user_code(cause) if cause is not None else ""


@contextlib.contextmanager
def _blame(what: str) -> Generator[None]:
    """Turn whatever other people's code does into a failure of the attempt; only our own cancellation passes."""
    try:
        yield
    except (_Failure, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Failure(f"{what}: {_say(error)}", error) from error
    except BaseException as error:  # Ctrl-C itself goes to the main thread
        raise _Failure(f"{what}: {_say(error)}", error) from error


def _say(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}") if str(error) else type(error).__name__


class LoopThread:
    """An event loop that runs on a daemon thread until it is closed."""

    _PATIENCE_S = 30.0

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit[T](self, coroutine: Coroutine[Any, Any, T], *, what: str) -> Operation[T]:
        return Operation(asyncio.run_coroutine_threadsafe(coroutine, self._loop), what)

    def close(self) -> None:
        """Cancel what is running, wait until it has cleaned up after itself, and stop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(self._PATIENCE_S)
        if self._thread.is_alive():
            get_logger(__name__).warning("a rollout does not react to being cancelled and is left to itself")

    def _serve(self) -> None:
        # Leaving the runner cancels every task and ends the loop's own worker threads.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._closing.wait())
