"""The harness of a task: the agent that drives the policy, and its environment.

A model is evaluated in the harness of its training, so training passes it to evaluation as one value.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ..config.base import expand_variables
from ..config.building import build_extension
from ..config.specs import AgentSpec, EnvironmentSpec
from ..errors import ConfigError, Problem
from ..log import get_logger
from ..paths import project_root
from ..registry import get_agent, get_environment
from ..user_code import default_limit_s, user_code
from .environment import Environment
from .harbor.native import ForeignAgent, NativeEnvironment, is_harbor_agent, keep_quiet, refuse_inline
from .relay import socket_folder
from .rollout import Agent


@dataclass(frozen=True, slots=True)
class Harness:
    """Creates a new agent and environment for each rollout."""

    agent: Callable[[], Agent]
    environment: Callable[[], Environment]
    description: dict[str, Any] = field(default_factory=dict[str, Any])
    """The config, for the record."""

    @property
    def engine(self) -> Literal["inline", "harbor"]:
        """The engine it needs: `harbor` if the agent or environment runs only in Harbor's trials."""
        is_theirs = isinstance(self.agent(), ForeignAgent) or isinstance(self.environment(), NativeEnvironment)
        return "harbor" if is_theirs else "inline"

    def refuse_inline(self) -> None:
        """Raise ConfigError if the agent runs only in Harbor's trials."""
        if isinstance(agent := self.agent(), ForeignAgent):
            refuse_inline(agent.import_path)


def build_harness(
    agent: AgentSpec | None = None,
    environment: EnvironmentSpec | None = None,
    *,
    agent_import_path: str | None = None,
    import_params: Mapping[str, Any] | None = None,
) -> Harness:
    """The harness of a recipe or benchmark; by default a chat without an environment.

    `import_params` are the params of the agent at `agent_import_path`.
    """
    if agent is not None and agent_import_path is not None:
        hint = "Keep 'agent' for a registered one, or 'agent_import_path' for a class of your own."
        raise ConfigError(Problem("agent and agent_import_path are both set", path="agent_import_path", hint=hint))
    agent_spec, environment_spec = agent or AgentSpec(), environment or EnvironmentSpec()
    agent_class = import_agent(agent_import_path) if agent_import_path else get_agent(agent_spec.kind)
    environment_class = get_environment(environment_spec.kind)
    agent_params = dict(import_params or {}) if agent_import_path else agent_spec.params
    # Report a config error now, not in each rollout.
    what = f"agent '{agent_import_path or agent_spec.kind}'"
    build_extension(agent_class, agent_params, what=what, path="agent.params")
    environment_params = _for_gateway(agent_class, environment_spec)
    named = {"import_path": agent_import_path, "params": agent_params} if agent_params else agent_import_path
    return Harness(
        agent=lambda: agent_class(**agent_params),
        environment=lambda: environment_class(**expand_variables(environment_params)),
        description={
            "agent": named if agent_import_path else agent_spec.model_dump(mode="json"),
            "environment": environment_spec.model_dump(mode="json"),
        },
    )


def _for_gateway(agent_class: Any, spec: EnvironmentSpec) -> dict[str, Any]:
    """The environment's params, with the mounts a program needs to reach the policy."""
    actual = getattr(agent_class, "func", agent_class)  # a partial for Harbor's agents
    if not getattr(actual, "needs_gateway", False):
        return spec.params
    if spec.kind == "none" and getattr(actual, "needs_environment", False):
        hint = "Set environment: { kind: bwrap }."
        raise ConfigError(Problem("agent 'program' needs an environment to run in", path="environment", hint=hint))
    if spec.kind != "bwrap":
        return spec.params
    return {**spec.params, "read_only": [*spec.params.get("read_only", ()), str(socket_folder())]}


def check_environment(spec: EnvironmentSpec | None) -> None:
    """Refuse a sandbox whose program is not installed, once before any rollout."""
    if spec is not None and spec.kind == "bwrap":
        from .environments.bwrap import BwrapConfig, find_bwrap

        config = BwrapConfig(**spec.params)
        find_bwrap(config.bwrap)
        if config.control_group:
            _warn_without_control_group()


@functools.cache
def _warn_without_control_group() -> None:
    """Warn once that the kernel does not limit the memory of sandboxes here."""
    from .sandbox.control_group import close_group, make_group

    group = make_group(64 << 20) if sys.platform == "linux" else None
    if group is not None:
        close_group(group)
        return
    get_logger(__name__).warning(
        "cannot create a control group, so only the supervisor limits the memory of sandboxes, 100 times a second. "
        "See evsys doctor --sandbox, or set control_group: false."
    )


def import_agent(path: str) -> Any:
    """A user's class, named as `package.module.Class` or `package.module:Class`."""
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    keep_quiet()
    try:
        agent = import_object(module_name, name)
    except (ImportError, ValueError, AttributeError) as error:
        hint = "Write it as package.module:Class, and check that the module can be imported from here (see --import)."
        raise ConfigError(
            Problem(f"cannot import the agent: {error}", path="agent_import_path", value=path, hint=hint)
        ) from error
    if is_harbor_agent(agent):
        return partial(ForeignAgent, f"{module_name}:{name}")
    if not callable(getattr(agent, "run", None)):
        hint = "An agent has `async run(task, policy, environment)`."
        raise ConfigError(Problem("this is not an agent", path="agent_import_path", value=path, hint=hint))
    return agent


# User code named by a config, e.g. an agent or a tool.


def import_object(module: str, name: str) -> Any:
    """An object of an importable module, also from the current folder or the project root."""
    for folder in (os.getcwd(), str(project_root())):  # not in the path of the installed command
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that it does not shadow libraries
    with user_code(f"importing '{module}'", limit_s=default_limit_s()):
        return getattr(importlib.import_module(module), name)
