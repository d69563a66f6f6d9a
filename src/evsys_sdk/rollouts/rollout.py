"""A rollout: one try of a policy at a task, with all sampled tokens and the reward.

A rollout has one of three states. `ok` and `truncated` (out of time, turns or tokens) have a reward and can be trained
on. `infra` means that something other than the policy failed: a sandbox, a model server or a verifier. It has no
reward, because such a failure must not count as a bad answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, Protocol, cast, runtime_checkable

from ..data.types import HarborTask
from ..errors import DataError, TrainingError, show
from .environment import Environment

type RolloutStatus = Literal["ok", "truncated", "infra"]
type Message = dict[str, Any]
"""One message of a conversation: `role`, `content`, and other fields of chat templates."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy: prompt, sampled tokens, and parsed message."""

    message: Message
    prompt_tokens: list[int] = field(default_factory=list[int])
    completion_tokens: list[int] = field(default_factory=list[int])
    """Exactly the sampled tokens; empty for a text-only policy."""
    logprobs: list[float] = field(default_factory=list[float])
    stop_reason: Literal["stop", "length"] = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    as_template: bool = True
    """Whether the model's chat template would keep the previous conversation as it was sampled."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One try at a task."""

    task_id: str
    sample: int
    """Its number among the rollouts of this task."""
    status: RolloutStatus
    reward: float | None
    turns: list[Turn] = field(default_factory=list[Turn])
    messages: list[Message] = field(default_factory=list[Message])
    error: str | None = None
    """Why it is `infra` or `truncated`."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Details from the verifier or the agent."""
    seconds: float = 0.0
    attempts: int = 1
    error_at: str = ""
    """Where the user's code failed, as `file.py:12`; empty if elsewhere."""

    @property
    def completion(self) -> str:
        """The text of the last answer."""
        return text_of(self.turns[-1].message) if self.turns else ""

    @property
    def tokens(self) -> int:
        """Tokens read and written over all turns."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @property
    def cost_usd(self) -> float | None:
        """The cost of the turns; None if any of them has no price."""
        costs = [turn.cost_usd for turn in self.turns]
        return None if not costs or None in costs else sum(cost for cost in costs if cost is not None)


class TruncatedError(DataError):
    """The rollout cannot continue; it is `truncated` and scored on its work so far."""


class AllFailedError(TrainingError):
    """None of a step's rollouts has a reward."""

    def __init__(self, message: str, rollouts: Sequence[Rollout] = ()) -> None:
        super().__init__(message)
        self.rollouts = tuple(rollouts)


@runtime_checkable
class Policy(Protocol):
    """The model being trained or evaluated."""

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        """Answer a conversation."""
        ...


@dataclass(frozen=True, slots=True)
class AgentResult:
    """An agent's result with more than the conversation, e.g. whether it won the game."""

    messages: list[Message]
    reward: float | None = None
    """The agent's own reward, which replaces the verifier's; None uses the verifier."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Details to record with the rollout."""


@runtime_checkable
class Agent(Protocol):
    """Solves a task by letting the policy act repeatedly."""

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message] | AgentResult:
        """Return the whole conversation, alone or with a reward."""
        ...


def read_agent_result(returned: Any) -> AgentResult:
    """An agent's return value as `AgentResult`; raises ValueError for an invalid one."""
    result: Any = AgentResult(cast("list[Message]", returned)) if isinstance(returned, list) else returned
    if not isinstance(result, AgentResult) or not isinstance(result.messages, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"the agent returned {show(cast('object', returned))} instead of the messages of its conversation"
        )
    if result.reward is not None and not _is_number(result.reward):
        raise ValueError(f"the agent returned the reward {show(result.reward)}")
    if not isinstance(result.info, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"the agent returned the info {show(result.info)} instead of a dict")
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def opening(task: HarborTask) -> list[Message]:
    """The initial messages of a task: its context and its instruction, if it has one."""
    context: list[Message] = list(task.metadata.get("context_messages", ()))
    if context and task.instruction == "":
        return context
    return [*context, {"role": "user", "content": task.instruction}]


def text_of(message: Message) -> str:
    """The text of a message, whether its content is a string or blocks."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content or () if isinstance(block, dict))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
