"""What one trial is about, kept next to Harbor.

Harbor makes agents, environments and verifiers itself, from import paths and JSON. Live objects cannot travel that way,
so a trial carries a key and its parts look the rest up here. Tokens stay here too: Harbor would write the whole prompt
of every turn to disk.
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
    """What the tests of a folder need of an environment that an agent has been at work in."""

    async def clear_for_tests(self, *, keep_processes: bool) -> None:
        """Leave nothing of the agent's where the tests go and where they write."""
        ...


@dataclass(slots=True)
class Attempt:
    """One trial: what it was asked for, and what has come of it so far."""

    request: RolloutRequest
    limits: EngineLimits
    agent: Agent
    environment: Environment
    recorder: RecordingPolicy
    gateway: Gateway | None = None
    """In front of the recorder, for an agent of Harbor's."""
    folder: Path | None = None
    """The task folder, when the task comes from one."""
    agent_limit_s: float = 0.0
    """How long the agent may take: the limit of the folder or ours, whichever is shorter."""
    tests_decide: bool = False
    """Whether the folder's own tests give the reward, rather than `request.verify`."""
    messages: list[Message] = field(default_factory=list[Message])
    reward: float | None = None
    """What the agent itself makes of its attempt; the verifier is then not asked."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    started: bool = False
    """Whether the environment did."""
    sandbox: CanBeCleared | None = None
    """The environment in which the agent was at work, while it runs and is one of ours."""
    stopped: str | None = None
    """Why the agent did not come to its end."""
    verdict: VerificationResult | None = None
    failure: str | None = None
    """What a bridge knows about a failure, in better words than an exception's name."""

    def rollout(self) -> Rollout:
        """What there is to verify."""
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
    """Give an attempt a key for as long as its trial runs."""
    key = str(next(_numbers))
    _attempts[key] = attempt
    try:
        yield key
    finally:
        del _attempts[key]


def find_attempt(key: str) -> Attempt:
    """The attempt behind a key."""
    return _attempts[key]
