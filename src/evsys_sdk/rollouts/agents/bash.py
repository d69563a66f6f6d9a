"""A multi-turn agent that runs the policy's shell commands in a sandbox.

The policy writes a command in a ```bash block and reads its output; an answer without a block ends the conversation.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...data.types import HarborTask
from ..environment import Environment
from ..rollout import Message, Policy, TruncatedError, opening, text_of

_COMMAND = re.compile(r"```(?:bash|sh)\n(.*?)```", re.DOTALL)
_INTRODUCTION = (
    "You work in a Linux shell. To run a command, write it in a ```bash block; you will be shown what it prints. "
    "When you are done, answer without such a block."
)


class BashAgent:
    """Runs the policy's shell commands in the environment and returns their output to it."""

    name: ClassVar[str] = "bash"

    class Config(Strict):
        """Parameters of `bash`."""

        max_turns: int = Field(default=16, ge=1)
        """Maximum number of the policy's turns."""
        command_timeout_s: float = Field(default=60.0, gt=0)
        """Time limit of one command."""
        max_output: int = Field(default=8000, ge=1)
        """Characters of a command's output that the policy reads."""
        introduction: str = _INTRODUCTION
        """System message that explains the shell to the policy; empty for none."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        introduction = [{"role": "system", "content": self.cfg.introduction}] if self.cfg.introduction else []
        messages: list[Message] = [*introduction, *opening(task)]
        for _ in range(self.cfg.max_turns):
            turn = await policy.act(messages)
            messages.append(turn.message)
            command = _COMMAND.search(text_of(turn.message))
            if command is None:
                return messages
            messages.append({"role": "user", "content": await self._execute(command[1], environment)})
        raise TruncatedError(f"the policy did not finish within {self.cfg.max_turns} turns")

    async def _execute(self, command: str, environment: Environment) -> str:
        result = await environment.exec(command, timeout_s=self.cfg.command_timeout_s)
        ending = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        output = "\n".join(part for part in (result.stdout, result.stderr) if part)
        if len(output) > self.cfg.max_output:
            output = f"{output[: self.cfg.max_output]}\n... ({len(output)} characters in all)"
        return f"{output}\n[{ending}]"
