"""Our verifiers as one of Harbor's, and what keeps an agent's hands off its own tests."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from harbor.models.verifier.result import VerifierResult
from harbor.trial.hooks import TrialHookEvent
from harbor.verifier.base import BaseVerifier

from ...errors import show
from .attempt import find_attempt
from .environment_view import view_of


class BridgeVerifier(BaseVerifier):
    """Scores the attempt that it is given the key of with the verifier of its task."""

    def __init__(self, *, attempt: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._attempt = find_attempt(attempt)

    async def verify(self) -> VerifierResult:
        attempt = self._attempt
        if not attempt.recorder.turns:
            return VerifierResult(rewards=None)  # nothing to score; the engine says why
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
    """End what an agent left running and remove what it put in the way of a folder's tests.

    A process in the background could write the reward after Harbor has removed a forged one, and a file in /tests
    could change what the tests do. A task that is about a running process says `keep_processes = true` in the
    [metadata] of its task.toml.
    """
    attempt = find_attempt(event.config.agent.kwargs["attempt"])
    if attempt.tests_decide and attempt.sandbox is not None:
        keep = bool(attempt.request.task.metadata.get("keep_processes"))
        try:
            await attempt.sandbox.clear_for_tests(keep_processes=keep)
        except Exception as error:
            attempt.failure = f"{type(error).__name__}: {error}"
            raise
