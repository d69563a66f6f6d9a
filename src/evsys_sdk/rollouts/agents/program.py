"""Any program as the agent: it requests completions over HTTP, and the trained policy answers them.

    agent: { kind: program, params: { command: "claude -p {instruction}", api: messages } }
    environment: { kind: bwrap }

The program runs unchanged in the task's environment and reaches the policy through its client's usual variables
(`OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL` and their keys). The gateway records the tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config.base import Strict
from ...data.chat import text_of
from ...data.types import HarborTask
from ..environment import Environment, ExecResult, SandboxError
from ..gateway import MODEL, Gateway, GatewayBudget
from ..relay import new_socket, start_relay
from ..rollout import AgentResult, Policy, TruncatedError, opening

_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
_LONGEST_S = 7 * 24 * 3600.0
"""Overrides the environment's limit for single commands; the engine stops a program that takes too long."""
_PLACEHOLDER = re.compile(r"\{(instruction|base_url|api_key|model)\}")
_SHOWN = 4000


class ProgramAgent:
    """Runs a command in the environment and serves the policy to it over HTTP."""

    name: ClassVar[str] = "program"
    needs_gateway: ClassVar[bool] = True
    needs_environment: ClassVar[bool] = True

    class Config(Strict):
        """Parameters of `program`."""

        command: str = Field(min_length=1)
        """Shell command; `{instruction}` is the task's text as one word, `{base_url}`, `{api_key}` and `{model}`
        address the policy.
        """
        api: Literal["chat", "completions", "messages", "responses"] | None = None
        """API that the program uses: OpenAI's chat completions, completions or responses, or Anthropic's messages.
        Default: any.
        """
        env: dict[str, str] = {}
        """Additional variables of the program, with the same placeholders."""
        files: dict[str, str] = {}
        """Files for the program: path -> content, with the same placeholders."""
        max_turns: int = Field(default=200, ge=1)
        """Answers per rollout; more truncate it."""
        max_tokens: int | None = Field(default=None, ge=1)
        """Sampled tokens per rollout; more truncate it."""
        reward: Literal["verifier", "exit_code"] = "verifier"
        """Source of the reward: the task's verifier, or 1 for exit code 0 and else 0."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> AgentResult:
        cfg = self.cfg
        in_sandbox = environment.name == "bwrap"
        paths = [_PATHS[cfg.api]] if cfg.api else []
        budget = GatewayBudget(cfg.max_turns, cfg.max_tokens)
        async with Gateway(policy, budget, paths=paths, socket=new_socket() if in_sandbox else None) as gateway:
            if in_sandbox:
                await start_relay(gateway, environment.write_file, environment.exec)
            result = await self._run(task, gateway, environment)
        if not gateway.messages:
            raise SandboxError(
                f"the program exited with {result.exit_code} without a request to the policy: {_end(result)}. "
                "Check agent.params.command, and that the program reads the variables of its api."
            )
        reward = float(result.exit_code == 0) if cfg.reward == "exit_code" else None
        info = {"exit_code": result.exit_code, "stdout": result.stdout[-_SHOWN:], "stderr": result.stderr[-_SHOWN:]}
        return AgentResult(gateway.messages, reward, info)

    async def _run(self, task: HarborTask, gateway: Gateway, environment: Environment) -> ExecResult:
        url = gateway.url
        instruction = "\n\n".join(text_of(message.get("content")) for message in opening(task))
        values = {"instruction": instruction, "base_url": f"{url}/v1", "api_key": gateway.credential, "model": MODEL}
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        for path, content in self.cfg.files.items():
            await environment.write_file(path, _fill(content, values))
        config_variables = {name: _fill(value, values) for name, value in self.cfg.env.items()}
        env = gateway.variables() | {"EVSYS_INSTRUCTION": instruction} | config_variables
        command = asyncio.ensure_future(
            environment.exec(_fill(self.cfg.command, quoted), timeout_s=_LONGEST_S, env=env)
        )
        exhausted = asyncio.ensure_future(gateway.exhausted.wait())
        try:
            await asyncio.wait({command, exhausted}, return_when=asyncio.FIRST_COMPLETED)
            if exhausted.done() and not command.done():
                raise TruncatedError(f"the program used up its budget of {self.cfg.max_turns} answers or of tokens")
            return await command
        finally:
            for task_ in (command, exhausted):
                task_.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.gather(command, exhausted, return_exceptions=True)


def _fill(text: str, values: dict[str, str]) -> str:
    # In one pass: an instruction may contain text that looks like a placeholder.
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _end(result: ExecResult) -> str:
    return (result.stderr.strip() or result.stdout.strip() or "it printed nothing")[-300:]
