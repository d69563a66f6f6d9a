"""The simplest agent: one question, one answer."""

from __future__ import annotations

from typing import ClassVar

from ...data.types import HarborTask
from ..environment import Environment
from ..rollout import Message, Policy, opening


class ChatAgent:
    """Asks the policy once and returns its answer."""

    name: ClassVar[str] = "chat"

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        messages = opening(task)
        turn = await policy.act(messages, tools=task.tools or None)
        return [*messages, turn.message]
