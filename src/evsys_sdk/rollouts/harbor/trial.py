"""From an attempt to a trial's configuration, and from a trial's result to a rollout."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.trial.queue import TrialQueue
from harbor.utils.logger import logger as harbor_logger

from ..rollout import Rollout, TruncatedError
from .attempt import Attempt
from .bridges import before_verification
from .native import NativeEnvironment
from .task_folder import write_stub

_HERE = __package__
_OUT_OF_TIME = "AgentTimeoutError"


def open_queue(concurrency: int) -> Any:
    """Harbor's trial queue, without its retries: the engine decides which failures to retry."""
    harbor_logger.setLevel(logging.WARNING)  # messages about steps would go to a file that is removed
    return TrialQueue(concurrency).on_verification_started(before_verification)


def trial_config(attempt: Attempt, key: str, name: str, root: Path) -> Any:
    """Harbor's config of a trial; `key` identifies the live objects."""
    bridge: dict[str, Any] = {"attempt": key}
    folder, ours = attempt.folder, attempt.environment
    image = ours.cfg.docker_image if isinstance(ours, NativeEnvironment) else None
    # A folder's time limits are capped by ours.
    limit = "override_timeout_sec" if folder is None else "max_timeout_sec"
    verify_time = {limit: attempt.limits.verify_timeout_s}
    verifier: dict[str, Any] = {"import_path": f"{_HERE}.bridges:BridgeVerifier", "kwargs": bridge}
    return TrialConfig(
        task=TaskConfig(path=folder or write_stub(root, {"docker_image": image})),
        trial_name=name,
        trials_dir=root / "trials",
        agent=AgentConfig(
            import_path=f"{_HERE}.bridges:BridgeAgent", kwargs=bridge, override_timeout_sec=attempt.agent_limit_s
        ),
        environment=_environment(attempt, bridge),
        verifier=VerifierConfig(**({} if attempt.tests_decide else verifier), **verify_time),
    )


def _environment(attempt: Attempt, bridge: dict[str, Any]) -> EnvironmentConfig:
    ours = attempt.environment
    if not isinstance(ours, NativeEnvironment):
        return EnvironmentConfig(import_path=f"{_HERE}.environment_bridge:BridgeEnvironment", kwargs=bridge)
    return EnvironmentConfig.model_validate(
        {
            "type": ours.type,
            "kwargs": ours.cfg.kwargs,
            "override_cpus": ours.cfg.cpus,
            "override_memory_mb": ours.cfg.memory_mb,
            "force_build": ours.cfg.force_build,
        }
    )


def harvest(attempt: Attempt, result: Any) -> Rollout:
    """A rollout with a reward, or the reason why there is none."""
    rollout = attempt.rollout()
    raised = result.exception_info
    # A timeout is not a failure: the agent is scored on its work so far.
    if raised is not None and raised.exception_type != _OUT_OF_TIME:
        return mark_failed(rollout, attempt.failure or _describe(attempt, result))
    swallowed = attempt.recorder.failure
    if attempt.stopped is None and swallowed is not None and not isinstance(swallowed, TruncatedError):
        return mark_failed(rollout, f"the model failed: {type(swallowed).__name__}: {swallowed}")
    if not rollout.turns:
        return mark_failed(rollout, attempt.stopped or "the agent made no request to the policy")
    if attempt.failure is not None:
        return mark_failed(rollout, attempt.failure)
    if attempt.reward is not None:
        return replace(rollout, reward=float(attempt.reward), info={**attempt.info, "reward_from": "agent"})
    if attempt.verdict is not None:
        return replace(rollout, reward=float(attempt.verdict.reward), info={**attempt.info, **attempt.verdict.info})
    rewards = (result.verifier_result.rewards if result.verifier_result else None) or {}
    reward = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    if reward is None:
        names = ", ".join(rewards)
        problem = f"the tests gave the rewards {names}, but none named 'reward'" if names else "there is no reward"
        return mark_failed(rollout, problem)
    return replace(rollout, reward=float(reward), info={**attempt.info, "rewards": dict(rewards)})


def mark_failed(rollout: Rollout, problem: str) -> Rollout:
    """The rollout without a reward: the failure is not the policy's."""
    return replace(rollout, status="infra", reward=None, error=problem)


def _describe(attempt: Attempt, result: Any) -> str:
    raised = result.exception_info
    message = f"{raised.exception_type}: {raised.exception_message}".rstrip(": ")
    if not attempt.started and not isinstance(attempt.environment, NativeEnvironment):
        return f"the environment did not start: {message}"
    component = "verifier" if result.verifier is not None else "trial" if result.agent_execution is None else "agent"
    return f"the {component} failed: {message}"
