"""The state of one trial, kept outside Harbor.

Harbor creates agents, environments and verifiers from import paths and JSON, which cannot carry live objects. So a
trial has a key, by which its parts look up the state here. Tokens stay here too: Harbor would write every prompt to
disk.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...protocols import VerificationResult
from ..engine import EngineLimits, RolloutRequest
from ..environment import Environment
from ..gateway import Gateway
from ..policy import RecordingPolicy
from ..rollout import Agent, Message, Rollout


class CanBeCleared(Protocol):
    """The interface of an environment that can be cleared before a folder's tests run."""

    async def clear_for_tests(self, *, keep_processes: bool) -> None:
        """Remove the agent's files where tests are installed and write, and its processes."""
        ...


@dataclass(slots=True)
class Attempt:
    """One trial: its request and its state so far."""

    request: RolloutRequest
    limits: EngineLimits
    agent: Agent
    environment: Environment
    recorder: RecordingPolicy
    gateway: Gateway | None = None
    """In front of the recorder, for an agent of Harbor."""
    folder: Path | None = None
    """The task folder, if the task has one."""
    agent_limit_s: float = 0.0
    """Time limit of the agent: the minimum of the folder's and ours."""
    tests_decide: bool = False
    """Whether the folder's tests give the reward rather than `request.verify`."""
    messages: list[Message] = field(default_factory=list[Message])
    reward: float | None = None
    """The agent's own reward, which replaces the verifier's."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    started: bool = False
    """Whether the environment has started."""
    sandbox: CanBeCleared | None = None
    """The agent's environment, while it runs and is one of ours."""
    stopped: str | None = None
    """Why the agent did not finish."""
    verdict: VerificationResult | None = None
    failure: str | None = None
    """A bridge's description of a failure, more precise than the exception."""

    def rollout(self) -> Rollout:
        """The rollout to verify."""
        turns = list(self.recorder.turns)
        problem = self.stopped
        if problem is None and turns and turns[-1].stop_reason == "length":
            problem = "the last answer was cut off at max_tokens"
        status = "ok" if problem is None else "truncated"
        messages = self.messages or self.recorder.messages
        return Rollout(self.request.task.task_id, self.request.sample, status, None, turns, messages, problem)


_attempts: dict[str, Attempt] = {}
_numbers = itertools.count()


@contextlib.contextmanager
def register_attempt(attempt: Attempt) -> Generator[str]:
    """Assign a key to an attempt while its trial runs."""
    key = str(next(_numbers))
    _attempts[key] = attempt
    try:
        yield key
    finally:
        del _attempts[key]


def find_attempt(key: str) -> Attempt:
    """The attempt of a key."""
    return _attempts[key]
