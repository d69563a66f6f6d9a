"""The rollout engine: runs many rollouts of many tasks concurrently. No other module has a rollout loop.

It handles concurrency, time limits, retries, cancellation and the recording of turns. Its event loop has a separate
thread, so that a slow agent cannot stall training.

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
    """One rollout to run."""

    task: HarborTask
    sample: int
    policy: Policy
    harness: Harness
    verify: Verify


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits on concurrency, time and retries."""

    concurrency: int = 32
    timeout_s: float = 600.0
    """For the agent; a stopped agent is scored on its work so far."""
    verify_timeout_s: float = 120.0
    environment_timeout_s: float = 300.0
    """For the start of an environment, and for its stop."""
    attempts: int = 2
    """Attempts at a rollout before an infrastructure failure is final."""


class RolloutEngine(Protocol):
    """The interface of engines for recipes and benchmarks."""

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start rollouts; results are in the order of the requests."""
        ...

    def close(self) -> None:
        """Cancel running rollouts and stop the thread."""
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
        # An asyncio queue belongs to one loop, so a new loop needs a new queue.
        self._slots = asyncio.LifoQueue()
        for number in range(self.limits.concurrency):
            self._slots.put_nowait(f"slot-{number}")

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        return list(await asyncio.gather(*(self._run_one(request) for request in requests)))

    async def _run_one(self, request: RolloutRequest) -> Rollout:
        number = 0
        while True:
            number += 1
            # A slot per attempt, not per rollout: a retry waits behind other rollouts.
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
        """Run one attempt; every failure is part of the result."""
        return await attempt_rollout(request, self.limits)


async def attempt_rollout(request: RolloutRequest, limits: EngineLimits) -> Rollout:
    """Run one attempt from environment start to stop; every failure is part of the result."""
    recorder = RecordingPolicy(request.policy)
    try:
        async with _start(request.harness, limits) as environment:
            unscored = await _act(request, limits, environment, recorder)
            return await _verify(unscored, request, limits, environment)
    except _Failure as failure:
        turns, messages = list(recorder.turns), recorder.messages
        return Rollout(
            request.task.task_id, request.sample, "infra", None, turns, messages, str(failure), error_at=failure.at
        )


@contextlib.asynccontextmanager
async def _start(harness: Harness, limits: EngineLimits) -> AsyncGenerator[Environment]:
    """Start an environment for a block; it is always stopped, even if the start fails."""
    with _blame("the environment cannot be created"):
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
        except _Failure as failure:  # the score so far stays valid
            get_logger(__name__).warning("%s", failure)


async def _act(
    request: RolloutRequest, limits: EngineLimits, environment: Environment, recorder: RecordingPolicy
) -> Rollout:
    """Run the agent; returns the unscored rollout."""
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
            if not timer.expired():  # raised by the agent, e.g. for a model server
                raise
    if timer.expired():
        problem = f"the agent was stopped after {limits.timeout_s:g} s"
    # An agent may catch the model's error and return a partial conversation, which must not be scored.
    elif recorder.failure is not None and not isinstance(recorder.failure, TruncatedError):
        raise _Failure(f"the model failed: {_describe_error(recorder.failure)}", recorder.failure)
    if not recorder.turns:
        raise _Failure(problem or "the agent made no request to the policy")
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
    """The rollout with its reward: the agent's own, else the verifier's."""
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
"""Harness description -> problem; cached, because the arms of an experiment usually share a harness."""


class _StandIn:
    """A policy with a constant answer."""

    async def act(self, messages: Sequence[Any], *, tools: Any = None) -> Turn:
        return Turn({"role": "assistant", "content": "Done."}, [0], [0], [0.0], input_tokens=1, output_tokens=1)


async def _reward_nothing(*_: Any) -> VerificationResult:
    return VerificationResult(0.0, {})


def try_program(harness: Harness, task: HarborTask, limit_s: float) -> str | None:
    """Run a program once against a policy with a constant answer; returns its problem, or None."""
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
    """A failure that is not the policy's."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.at = place_in_user_code(cause) if cause is not None else ""


@contextlib.contextmanager
def _blame(what: str) -> Generator[None]:
    """Convert exceptions of user code to `_Failure`; only our own cancellation passes through."""
    try:
        yield
    except (_Failure, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Failure(f"{what}: {_describe_error(error)}", error) from error
    except BaseException as error:  # Ctrl-C is raised in the main thread
        raise _Failure(f"{what}: {_describe_error(error)}", error) from error


def _describe_error(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}") if str(error) else type(error).__name__


class LoopThread:
    """An event loop on a daemon thread, until closed."""

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
        """Cancel running tasks, wait for their cleanup, and stop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(self._PATIENCE_S)
        if self._thread.is_alive():
            get_logger(__name__).warning("a rollout ignores its cancellation and keeps running in the background")

    def _serve(self) -> None:
        # Exiting the runner cancels every task and stops the loop's worker threads.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._closing.wait())
