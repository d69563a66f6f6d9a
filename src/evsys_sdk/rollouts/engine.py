"""The rollout engine: many attempts at many tasks at once. Nobody else writes a rollout loop.

It owns concurrency, time limits, retries, cancellation and the collection of turns, and runs on an event loop of its
own, on a thread of its own, so that a slow agent cannot stall training.

    engine = InlineEngine(concurrency=32)
    rollouts = await engine.run([RolloutRequest(task, sample=0, policy=policy, harness=harness, verify=verify)])
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..backends.future import Operation
from ..data.types import HarborTask
from ..protocols import VerificationResult
from .environment import Environment
from .harness import Harness
from .policy import ContextFullError, RecordingPolicy
from .rollout import Policy, Rollout, RolloutStatus, Turn

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
    attempts: int = 2
    """How often a rollout is tried before an infrastructure failure is final."""


class RolloutEngine(Protocol):
    """What recipes and benchmarks need of an engine."""

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start rollouts; their results come in the order of the requests."""
        ...

    def close(self) -> None:
        """Cancel what is running and let go of the thread."""
        ...


@dataclass(slots=True)
class InlineEngine:
    """Runs agents in this process: no files, about a millisecond of overhead."""

    limits: EngineLimits = field(default_factory=EngineLimits)
    _loop: _LoopThread | None = None
    _slots: asyncio.Semaphore | None = None

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        if self._loop is None:
            self._loop = _LoopThread("evsys-rollouts")
            self._slots = asyncio.Semaphore(self.limits.concurrency)
        return self._loop.submit(self._run_all(list(requests)), what=f"{len(requests)} rollouts")

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Submit and await."""
        return await self.submit(requests)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = self._slots = None

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        return list(await asyncio.gather(*(self._run_one(request) for request in requests)))

    async def _run_one(self, request: RolloutRequest) -> Rollout:
        assert self._slots is not None
        attempt = 0
        while True:
            attempt += 1
            async with self._slots:
                rollout = await attempt_rollout(request, self.limits)
            if rollout.status != "infra" or attempt >= self.limits.attempts:
                return replace(rollout, attempts=attempt)


async def attempt_rollout(request: RolloutRequest, limits: EngineLimits) -> Rollout:
    """One attempt from the start of the environment to its end; whatever goes wrong is part of the result."""
    began = time.perf_counter()
    recorder = RecordingPolicy(request.policy)
    try:
        environment = request.harness.environment()
        await environment.start()
    except Exception as error:
        return _failed(request, recorder.turns, f"the environment did not start: {_say(error)}", began)
    try:
        return await _act_and_verify(request, limits, environment, recorder, began)
    finally:
        await environment.stop()


async def _act_and_verify(
    request: RolloutRequest, limits: EngineLimits, environment: Environment, recorder: RecordingPolicy, began: float
) -> Rollout:
    status: RolloutStatus = "ok"
    problem: str | None = None
    messages: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(limits.timeout_s):
            messages = await request.harness.agent().run(request.task, recorder, environment)
    except TimeoutError:
        status, problem = "truncated", f"the agent was stopped after {limits.timeout_s:g} s"
    except ContextFullError as error:
        status, problem = "truncated", str(error)
    except Exception as error:
        return _failed(request, recorder.turns, f"the agent failed: {_say(error)}", began)
    if not recorder.turns:
        return _failed(request, [], problem or "the agent never asked the policy for anything", began)
    if status == "ok" and recorder.turns[-1].stop_reason == "length":
        status, problem = "truncated", "the last answer was cut off at max_tokens"
    rollout = Rollout(
        request.task.task_id, request.sample, status, None, recorder.turns, messages, problem, seconds=_since(began)
    )
    try:
        async with asyncio.timeout(limits.verify_timeout_s):
            verdict = await request.verify(request.task, rollout, environment)
    except Exception as error:
        return _failed(request, recorder.turns, f"the verifier failed: {_say(error)}", began)
    if not math.isfinite(verdict.reward):
        return _failed(request, recorder.turns, f"the verifier returned the reward {verdict.reward}", began)
    return replace(rollout, reward=float(verdict.reward), info=verdict.info, seconds=_since(began))


def _failed(request: RolloutRequest, turns: list[Turn], problem: str, began: float) -> Rollout:
    return Rollout(request.task.task_id, request.sample, "infra", None, turns, [], problem, seconds=_since(began))


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _since(began: float) -> float:
    return time.perf_counter() - began


class _LoopThread:
    """An event loop that runs on a daemon thread until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit[T](self, coroutine: Coroutine[Any, Any, T], *, what: str) -> Operation[T]:
        return Operation(asyncio.run_coroutine_threadsafe(coroutine, self._loop), what)

    def close(self) -> None:
        """Cancel what is running, wait until it has cleaned up after itself, and stop."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _stop(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: self._loop.stop())
        if not tasks:
            self._loop.stop()
