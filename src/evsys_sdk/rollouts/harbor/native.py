"""What Harbor brings along, as configs name it: its agents, and its environments `harbor:docker`, `harbor:modal`,
`harbor:daytona` and the rest of its types. Each stands for the real thing until a trial makes it.

    agent_import_path: my_package.agents:MyAgent     # a subclass of harbor's BaseAgent
    environment: { kind: "harbor:docker", params: { docker_image: "python:3.12" } }

Each trial has a gateway in front of the policy. Agents that run a program in the environment (Harbor's installed
agents, such as Claude Code, Codex and mini-swe-agent) are given its address and credential as `extra_env`, and ask it
without any change; one derived from Harbor's Terminus-2 asks the policy in this process. An agent of one's own may also
use `self.policy` (set before `setup`), with `async act(messages, tools=...)`. An agent that calls a model elsewhere
leaves no turns, and a rollout without turns is a failure, never a zero.
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
    """Stands for a Harbor agent until a trial makes it."""

    import_path: str
    """`package.module:Class`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_gateway: ClassVar[bool] = True

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        refuse_inline(self.import_path)


def refuse_inline(agent: str) -> NoReturn:
    """Say that an agent needs Harbor around it."""
    problem = Problem(
        "this agent runs only inside a Harbor trial", path="agent", value=agent, hint="Set engine: harbor."
    )
    raise ConfigError(problem)


_QUIET = {
    "HARBOR_TELEMETRY": "0",  # nothing about a run leaves the machine unasked
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # importing litellm would otherwise fetch a price list
}


def keep_quiet() -> None:
    """Before Harbor or litellm is imported; what the user has set stays as it is."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def is_harbor_agent(found: Any) -> bool:
    """Whether a class derives from Harbor's `BaseAgent`; told without importing Harbor."""
    bases = (f"{base.__module__}.{base.__qualname__}" for base in getattr(found, "__mro__", ()))
    return "harbor.agents.base.BaseAgent" in bases


class NativeConfig(Strict):
    """Params of Harbor's own environments."""

    docker_image: str | None = None
    """Image for tasks that are plain rows; a task folder names its own."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors, instead of what the task asks for."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory, instead of what the task asks for."""
    force_build: bool = False
    """Whether to build the image even if it exists."""
    kwargs: dict[str, Any] = {}
    """Passed on to Harbor's environment."""


class NativeEnvironment(NoEnvironment):
    """One of the environments that Harbor brings along, used by engine `harbor` only."""

    name: ClassVar[str] = "harbor:docker"
    Config = NativeConfig
    type: ClassVar[str] = "docker"

    def __init__(self, **params: Any) -> None:
        self.cfg = NativeConfig(**params)

    @classmethod
    def member(cls, name: str) -> type[NativeEnvironment]:
        """The class behind `harbor:TYPE`."""
        kind = name.partition(":")[2]
        return type("NativeEnvironment", (cls,), {"name": name, "type": kind, "__doc__": f"Harbor's {kind}."})

    async def start(self) -> None:
        self._refuse("start")

    def _refuse(self, what: str) -> NoReturn:
        raise SandboxError(f"The environment {self.name!r} exists only inside a Harbor trial; set engine: harbor.")


class Terminus2Config(Strict):
    """Parameters of `terminus_2`."""

    max_turns: int = Field(default=50, ge=1)
    """How often the policy may act."""
    parser_name: Literal["json", "xml"] = "json"
    """In which form the policy writes its keystrokes."""
    enable_summarize: bool = False
    """Whether a full context is summarized by the policy; the turns are then no longer one conversation."""
    kwargs: dict[str, Any] = {}
    """Further options of Harbor's agent."""


class Terminus2(ForeignAgent):
    """Lets the policy type into a terminal; Harbor's agent, for engine `harbor` only.

        agent: { kind: terminus_2, params: { max_turns: 30 } }

    Harbor's terminal agent Terminus-2: the policy types into a terminal and reads its screen. It needs engine `harbor`
    and an environment with a shell and tmux.
    """

    name: ClassVar[str] = "terminus_2"
    Config = Terminus2Config

    def __init__(self, **params: Any) -> None:
        cfg = Terminus2Config(**params)
        options: Mapping[str, Any] = {
            "max_turns": cfg.max_turns,
            "parser_name": cfg.parser_name,
            "enable_summarize": cfg.enable_summarize,
            "record_terminal_session": False,  # would install a recorder into the sandbox
            "suppress_max_turns_warning": True,
            **cfg.kwargs,
        }
        super().__init__("harbor.agents.terminus_2:Terminus2", options)
