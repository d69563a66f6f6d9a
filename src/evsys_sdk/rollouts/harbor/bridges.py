"""Adapters of our agents and verifiers, which Harbor creates for every trial by import path."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.verifier.result import VerifierResult
from harbor.trial.hooks import TrialHookEvent
from harbor.verifier.base import BaseVerifier

from ..._version import __version__
from ...errors import show
from ..environment import Environment, EnvironmentFileError, EnvironmentFileNotFoundError, ExecResult, NoEnvironment
from ..gateway import MODEL as POLICY
from ..relay import start_relay
from ..rollout import TruncatedError, opening, read_agent_result, text_of
from .attempt import Attempt, find_attempt
from .native import ForeignAgent, NativeEnvironment

MODEL = "evsys/policy"
_TERMINUS = "harbor.agents.terminus_2.terminus_2.Terminus2"


class BridgeAgent(BaseAgent):
    """Runs the agent of the attempt with the given key."""

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
            gateway, ours = self._attempt.gateway, self._attempt.environment
            if gateway is not None and gateway.socket is not None:
                await start_relay(gateway, ours.write_file, ours.exec)
            await self._inner.setup(environment)

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        attempt = self._attempt
        try:
            if self._inner is not None:
                instruction_text = "\n\n".join(text_of(message) for message in opening(attempt.request.task))
                await self._inner.run(instruction_text, environment, context)
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
            # Harbor would treat it as its own time limit.
            raise RuntimeError(f"the agent failed: {type(error).__name__}: {error}") from error


def make_inner(agent: ForeignAgent, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseAgent:
    """Create a Harbor agent that uses our policy."""
    from harbor.utils.import_path import import_class

    agent_class = import_class(agent.import_path, base=BaseAgent, label="agent")
    if any(f"{base.__module__}.{base.__name__}" == _TERMINUS for base in agent_class.__mro__):
        from .terminus import with_policy

        agent_class = with_policy(agent_class, attempt)
    options = {
        "model_name": _model_of(agent_class),
        **{k: v for k, v in kwargs.items() if v is not None},
        **agent.kwargs,
    }
    if attempt.gateway is not None:
        options["extra_env"] = attempt.gateway.variables() | (options.get("extra_env") or {})
    inner = agent_class(*args, **options)
    inner.policy = attempt.recorder  # pyright: ignore[reportAttributeAccessIssue]
    return inner


def _model_of(agent_class: type[BaseAgent]) -> str:
    """The policy's model name, with the provider whose API the agent uses."""
    spec = getattr(agent_class, "MODEL_CONNECTION", None)
    return MODEL if spec is None else f"{spec.default_provider or 'openai'}/{POLICY}"


# Adapter of Harbor's environments for our agents and verifiers.

_MOST_BYTES = 64 * 1024 * 1024


class EnvironmentView(NoEnvironment):
    """A Harbor environment, which Harbor starts and stops."""

    name: ClassVar[str] = "harbor"

    def __init__(self, inner: BaseEnvironment) -> None:
        self._inner = inner

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        seconds = None if timeout_s is None else math.ceil(timeout_s)
        result = await self._inner.exec(command, cwd=cwd, env=dict(env) if env else None, timeout_sec=seconds)
        return ExecResult(
            result.stdout or "", result.stderr or "", result.return_code, timed_out=result.return_code == 124
        )

    async def write_file(self, path: str, data: bytes | str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "data")
            local.write_bytes(data.encode() if isinstance(data, str) else data)
            await self._inner.upload_file(local, path)

    async def read_file(self, path: str) -> bytes:
        if not await self._inner.is_file(path):
            raise EnvironmentFileNotFoundError(f"{path}: does not exist in the environment.")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "data")
            await self._inner.download_file(path, local)
            if local.is_symlink() or not local.is_file() or local.stat().st_size > _MOST_BYTES:
                raise EnvironmentFileError(f"{path}: is not a regular file of at most {_MOST_BYTES} bytes.")
            return local.read_bytes()


def view_of(attempt: Attempt, environment: BaseEnvironment) -> Environment:
    """The environment for our agents and verifiers: our own if there is one below Harbor's."""
    return EnvironmentView(environment) if isinstance(attempt.environment, NativeEnvironment) else attempt.environment


# Adapter of our verifiers, and protection of a folder's tests against its agent.


class BridgeVerifier(BaseVerifier):
    """Scores the attempt of the given key with the verifier of its task."""

    def __init__(self, *, attempt: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._attempt = find_attempt(attempt)

    async def verify(self) -> VerifierResult:
        attempt = self._attempt
        if not attempt.recorder.turns:
            return VerifierResult(rewards=None)  # nothing to score; the engine reports why
        if attempt.reward is not None:
            return VerifierResult(rewards={"reward": float(attempt.reward)})
        request = attempt.request
        environment = view_of(attempt, self.environment)
        try:
            verdict = await request.verify(request.task, attempt.rollout(), environment)
        except Exception as error:
            attempt.failure = f"the verifier failed: {type(error).__name__}: {error}"
            raise
        if not isinstance(verdict.reward, Real) or not math.isfinite(verdict.reward):
            attempt.failure = f"the verifier returned the reward {show(verdict.reward)}"
            raise ValueError(attempt.failure)
        attempt.verdict = verdict
        return VerifierResult(rewards={"reward": float(verdict.reward)})


async def before_verification(event: TrialHookEvent) -> None:
    """Kill an agent's processes and remove its files where a folder's tests run.

    A background process could write the reward after Harbor has removed a forged one, and a file in /tests could change
    the tests. A task that tests a running process sets `keep_processes = true` in the [metadata] of its task.toml.
    """
    attempt = find_attempt(event.config.agent.kwargs["attempt"])
    if attempt.tests_decide and attempt.sandbox is not None:
        keep = bool(attempt.request.task.metadata.get("keep_processes"))
        try:
            await attempt.sandbox.clear_for_tests(keep_processes=keep)
        except Exception as error:
            attempt.failure = f"{type(error).__name__}: {error}"
            raise
