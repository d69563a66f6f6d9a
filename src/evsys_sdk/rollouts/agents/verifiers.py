"""The harness program of a verifiers task as an agent: it asks through the library, and the library asks the policy.

    data: { path: "verifiers:my_taskset.py?program=true" }
    agent: { kind: verifiers }

Each rollout has its own gateway, so the tokens are those of the policy; the rewards are those of the task.
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
    """Runs the harness program of a task of the verifiers library; the library makes its runtime."""

    name: ClassVar[str] = "verifiers"
    needs_gateway: ClassVar[bool] = True

    class Config(Strict):
        """Parameters of `verifiers`."""

        harness: dict[str, Any] = {}
        """Config of a harness of the library, e.g. `{id: "null"}`; by default the one that the taskset exports."""
        runtime: dict[str, Any] = {"type": "subprocess"}
        """Where the program runs, as the library describes it; `subprocess` is this machine without a sandbox."""
        max_turns: int = Field(default=200, ge=1)
        """How many answers the program may ask for; then the rollout is truncated."""
        max_tokens: int | None = Field(default=None, ge=1)
        """How many tokens may be sampled in all; then the rollout is truncated."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> AgentResult:
        verifier = task.verifier
        if not isinstance(verifier, InProcessVerifier) or verifier.fn_name != self.name:
            raise DataError(f"task '{task.task_id}' is no task of verifiers. Take it from a path verifiers:MODULE.")
        source: Any = get_verifier(self.name)(**verifier.params)
        async with Gateway(policy, GatewayBudget(self.cfg.max_turns, self.cfg.max_tokens)) as gateway:
            # The library takes keys from the process's environment, which all rollouts share; headers are each one's.
            where = {"type": "eval", "base_url": f"{gateway.url}/v1", "api_key_var": ""}
            client = {**where, "headers": {"x-api-key": gateway.credential}}
            spec = {"model": MODEL, "client": client, "runtime": self.cfg.runtime, "harness": self.cfg.harness}
            trace = await source.run_program(spec)
        failure = getattr(policy, "failure", None)
        if gateway.exhausted.is_set() or isinstance(failure, TruncatedError):
            raise TruncatedError(str(failure or f"the program has spent its budget of {self.cfg.max_turns} answers"))
        if not trace.ok:
            reasons = "; ".join(f"{one.type}: {one.message}" for one in trace.errors)
            raise SandboxError(f"the harness program failed: {reasons or 'it gave no reason'}. Check agent.params.")
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        return AgentResult(gateway.messages, float(trace.reward), {**trace.metrics, **rewards})
