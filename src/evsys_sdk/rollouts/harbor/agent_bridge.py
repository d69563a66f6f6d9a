"""The agent that every trial runs: it drives our agents, or Harbor's own, with the current policy."""

# pyright: basic, reportMissingImports=false
# Harbor is an optional extra; these modules are imported by Harbor itself, by their import path.

from __future__ import annotations

import asyncio
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from ..._version import __version__
from ..rollout import TruncatedError, opening, read_agent_result, text_of
from .attempt import Attempt, find_attempt
from .environment_view import view_of
from .foreign_agent import ForeignAgent

MODEL = "evsys/policy"


class BridgeAgent(BaseAgent):
    """Runs the agent of the attempt that it is given the key of."""

    def __init__(self, *args: Any, attempt: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attempt = find_attempt(attempt)
        self._inner: BaseAgent | None = None
        if isinstance(self._attempt.agent, ForeignAgent):
            inner = make_inner(self._attempt.agent, self._attempt, args, kwargs)
            self._inner, self.capabilities = inner, inner.capabilities

    @staticmethod
    def name() -> str:
        return "evsys"

    def version(self) -> str:
        return __version__

    async def setup(self, environment: BaseEnvironment) -> None:
        if self._inner is not None:
            self._inner.session_id, self._inner.context_id = self.session_id, self.context_id
            await self._inner.setup(environment)

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        attempt = self._attempt
        try:
            if self._inner is not None:
                told = "\n\n".join(text_of(message) for message in opening(attempt.request.task))
                await self._inner.run(told, environment, context)
            else:
                view = view_of(attempt, environment)
                result = read_agent_result(await attempt.agent.run(attempt.request.task, attempt.recorder, view))
                attempt.messages, attempt.reward, attempt.info = result.messages, result.reward, result.info
        except asyncio.CancelledError:
            attempt.stopped = f"the agent was stopped after {attempt.agent_limit_s:g} s"
            raise
        except TruncatedError as error:
            attempt.stopped = str(error)
        except TimeoutError as error:
            # Harbor would take it for its own time limit.
            raise RuntimeError(f"the agent failed: {type(error).__name__}: {error}") from error


def make_inner(agent: ForeignAgent, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseAgent:
    """A Harbor agent that asks our policy."""
    from harbor.utils.import_path import import_class

    found = import_class(agent.import_path, base=BaseAgent, label="agent")
    if any(f"{base.__module__}.{base.__name__}" == _TERMINUS for base in found.__mro__):
        from .terminus import with_policy

        found = with_policy(found, attempt)
    inner = found(*args, **{"model_name": MODEL, **{k: v for k, v in kwargs.items() if v is not None}, **agent.kwargs})
    inner.policy = attempt.recorder  # pyright: ignore[reportAttributeAccessIssue]
    return inner


_TERMINUS = "harbor.agents.terminus_2.terminus_2.Terminus2"
