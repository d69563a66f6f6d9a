"""Runs the harness program of a task of the verifiers library, which sends its requests to the policy.

    data: { path: "verifiers:my_taskset.py?program=true" }
    agent: { kind: verifiers }

Each rollout has its own gateway, which records the policy's tokens; the task gives the rewards.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...data.types import HarborTask, InProcessVerifier
from ...errors import DataError
from ...registry import get_verifier
from ..environment import Environment, SandboxError
from ..gateway import MODEL, Gateway, GatewayBudget
from ..rollout import AgentResult, Policy, TruncatedError


class VerifiersAgent:
    """Runs the harness program of a verifiers task; the library creates its runtime."""

    name: ClassVar[str] = "verifiers"
    needs_gateway: ClassVar[bool] = True

    class Config(Strict):
        """Parameters of `verifiers`."""

        harness: dict[str, Any] = {}
        """Config of a harness of the library, e.g. `{id: "null"}`; by default the taskset's own."""
        runtime: dict[str, Any] = {"type": "subprocess"}
        """Runtime of the program, in the library's form; `subprocess` is this machine without a sandbox."""
        max_turns: int = Field(default=200, ge=1)
        """Answers per rollout; more truncate it."""
        max_tokens: int | None = Field(default=None, ge=1)
        """Sampled tokens per rollout; more truncate it."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> AgentResult:
        verifier = task.verifier
        if not isinstance(verifier, InProcessVerifier) or verifier.fn_name != self.name:
            raise DataError(f"task '{task.task_id}' is not a verifiers task. Load tasks from a path verifiers:MODULE.")
        source: Any = get_verifier(self.name)(**verifier.params)
        async with Gateway(policy, GatewayBudget(self.cfg.max_turns, self.cfg.max_tokens)) as gateway:
            # The library reads keys from the process environment, which rollouts share; headers are per rollout.
            endpoint = {"type": "eval", "base_url": f"{gateway.url}/v1", "api_key_var": ""}
            client = {**endpoint, "headers": {"x-api-key": gateway.credential}}
            spec = {"model": MODEL, "client": client, "runtime": self.cfg.runtime, "harness": self.cfg.harness}
            trace = await source.run_program(spec)
        failure = getattr(policy, "failure", None)
        if gateway.exhausted.is_set() or isinstance(failure, TruncatedError):
            raise TruncatedError(str(failure or f"the program used up its budget of {self.cfg.max_turns} answers"))
        if not trace.ok:
            reasons = "; ".join(f"{error.type}: {error.message}" for error in trace.errors)
            raise SandboxError(f"the harness program failed: {reasons or 'it gave no reason'}. Check agent.params.")
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        return AgentResult(gateway.messages, float(trace.reward), {**trace.metrics, **rewards})
