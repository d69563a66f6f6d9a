"""Agents that are written for Harbor rather than for this SDK, as a harness names them.

    agent_import_path: my_package.agents:MyAgent     # a subclass of harbor's BaseAgent

Such an agent finds the current policy as `self.policy` (set before `setup`), with `async act(messages, tools=...)`; one
that is derived from Harbor's Terminus-2 asks the policy without any change. An agent that calls a model elsewhere
leaves no turns, and a rollout without turns is a failure, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...data.types import HarborTask
from ...errors import ConfigError, Problem
from ..environment import Environment
from ..rollout import Message, Policy


@dataclass(frozen=True, slots=True)
class ForeignAgent:
    """Stands for a Harbor agent until a trial makes it."""

    import_path: str
    """`package.module:Class`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        refuse_inline(self.import_path)


def refuse_inline(agent: str) -> NoReturn:
    """Say that an agent needs Harbor around it."""
    problem = Problem(
        "this agent runs only inside a Harbor trial", path="agent", value=agent, hint="Set engine: harbor."
    )
    raise ConfigError(problem)


def is_harbor_agent(found: Any) -> bool:
    """Whether a class derives from Harbor's `BaseAgent`; told without importing Harbor."""
    bases = (f"{base.__module__}.{base.__qualname__}" for base in getattr(found, "__mro__", ()))
    return "harbor.agents.base.BaseAgent" in bases
