"""Harbor's own agents and environments (`harbor:docker`, `harbor:modal`, `harbor:daytona`, ...) as configs name them.

Each is a placeholder until a trial creates the real object.

    agent_import_path: my_package.agents:MyAgent     # a subclass of harbor's BaseAgent
    environment: { kind: "harbor:docker", params: { docker_image: "python:3.12" } }

Each trial has a gateway to the policy. Agents that run a program in the environment (Harbor's installed agents, such as
Claude Code, Codex and mini-swe-agent) get its address and credential as `extra_env`; an agent derived from Harbor's
Terminus-2 calls the policy in this process. A custom agent may also use `self.policy` (set before `setup`), with
`async act(messages, tools=...)`. An agent that calls another model records no turns, and a rollout without turns is a
failure, never a zero.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn

from pydantic import Field

from ...config.base import Strict
from ...data.types import HarborTask
from ...errors import ConfigError, Problem
from ..environment import Environment, NoEnvironment, SandboxError
from ..rollout import Message, Policy


@dataclass(frozen=True, slots=True)
class ForeignAgent:
    """Placeholder of a Harbor agent until a trial creates it."""

    import_path: str
    """`package.module:Class`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_gateway: ClassVar[bool] = True

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        refuse_inline(self.import_path)


def refuse_inline(agent: str) -> NoReturn:
    """Raise ConfigError for an agent that needs Harbor."""
    problem = Problem(
        "this agent runs only inside a Harbor trial", path="agent", value=agent, hint="Set engine: harbor."
    )
    raise ConfigError(problem)


_QUIET = {
    "HARBOR_TELEMETRY": "0",  # no telemetry by default
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # importing litellm would otherwise fetch a price list
}


def keep_quiet() -> None:
    """Set defaults before Harbor or litellm is imported; the user's own settings take precedence."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def is_harbor_agent(candidate: Any) -> bool:
    """Whether a class derives from Harbor's `BaseAgent`, without importing Harbor."""
    bases = (f"{base.__module__}.{base.__qualname__}" for base in getattr(candidate, "__mro__", ()))
    return "harbor.agents.base.BaseAgent" in bases


class NativeConfig(Strict):
    """Params of Harbor's environments."""

    docker_image: str | None = None
    """Image for tasks without a folder; a task folder names its own."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors; overrides the task's value."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory; overrides the task's value."""
    force_build: bool = False
    """Whether to rebuild an existing image."""
    kwargs: dict[str, Any] = {}
    """Arguments of Harbor's environment."""


class NativeEnvironment(NoEnvironment):
    """One of Harbor's environments, for engine `harbor` only."""

    name: ClassVar[str] = "harbor:docker"
    Config = NativeConfig
    type: ClassVar[str] = "docker"

    def __init__(self, **params: Any) -> None:
        self.cfg = NativeConfig(**params)

    @classmethod
    def member(cls, name: str) -> type[NativeEnvironment]:
        """The class of `harbor:TYPE`."""
        kind = name.partition(":")[2]
        return type("NativeEnvironment", (cls,), {"name": name, "type": kind, "__doc__": f"Harbor's {kind}."})

    async def start(self) -> None:
        self._refuse("start")

    def _refuse(self, what: str) -> NoReturn:
        raise SandboxError(f"environment {self.name!r} runs only inside a Harbor trial. Set engine: harbor.")


class Terminus2Config(Strict):
    """Parameters of `terminus_2`."""

    max_turns: int = Field(default=50, ge=1)
    """Maximum number of the policy's turns."""
    parser_name: Literal["json", "xml"] = "json"
    """Format in which the policy writes keystrokes."""
    enable_summarize: bool = False
    """Whether the policy summarizes a full context; the turns then no longer form one conversation."""
    kwargs: dict[str, Any] = {}
    """Further arguments of Harbor's agent."""


class Terminus2(ForeignAgent):
    """Lets the policy type into a terminal; Harbor's agent, for engine `harbor` only.

        agent: { kind: terminus_2, params: { max_turns: 30 } }

    Harbor's Terminus-2: the policy types into a terminal and reads its screen. It needs engine `harbor` and an
    environment with a shell and tmux.
    """

    name: ClassVar[str] = "terminus_2"
    Config = Terminus2Config

    def __init__(self, **params: Any) -> None:
        cfg = Terminus2Config(**params)
        options: Mapping[str, Any] = {
            "max_turns": cfg.max_turns,
            "parser_name": cfg.parser_name,
            "enable_summarize": cfg.enable_summarize,
            "record_terminal_session": False,  # would install a recorder in the sandbox
            "suppress_max_turns_warning": True,
            **cfg.kwargs,
        }
        super().__init__("harbor.agents.terminus_2:Terminus2", options)
