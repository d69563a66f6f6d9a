"""The engine `harbor`: every rollout is a Harbor trial, with its task folders, agents, environments and verifiers.

It costs several milliseconds more per rollout than `inline`, so use it for tasks that need Harbor. Files of trials are
kept in memory if possible and removed after each trial.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import tempfile
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...backends.future import Operation
from ...errors import MissingExtraError, TrainingError
from ..engine import EngineLimits, InlineEngine, RolloutRequest
from ..gateway import Gateway
from ..policy import RecordingPolicy
from ..relay import new_socket
from ..rollout import Rollout
from .attempt import Attempt, register_attempt
from .native import ForeignAgent, keep_quiet
from .task_folder import agent_limit, folder_of, has_own_tests, is_task_folder, refuse_containers

_MEMORY = Path("/dev/shm")
_ENOUGH_MEMORY = 256 * 1024 * 1024


class HarborEngine(InlineEngine):
    """Runs rollouts as trials on a separate event loop, which many simultaneous starts would stall."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        require_harbor()
        super().__init__(limits)
        self._root = Path()
        self._queue: Any = None
        self._remove_files: Callable[[], Any] = lambda: None

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start trials; tasks that would fail are refused before the first starts."""
        for request in requests:
            if is_task_folder(
                Path(str(request.task.metadata.get("task_dir", "")))
            ):  # otherwise the rollout reports the error
                refuse_containers([request.task], request.harness.environment)
        return super().submit(requests)

    def close(self) -> None:
        super().close()
        self._remove_files()

    def _open(self) -> None:
        from .trial import open_queue

        super()._open()
        self._root = Path(tempfile.mkdtemp(prefix="evsys-harbor-", dir=_fast_folder()))
        # Runs even if the engine is never closed: these files use memory.
        self._remove_files = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._queue = open_queue(self.limits.concurrency)

    async def _attempt(self, request: RolloutRequest, slot: str) -> Rollout:
        # Harbor never deletes the logger of a trial name, so trials reuse a few names.
        from .trial import harvest, mark_failed, trial_config

        recorder = RecordingPolicy(request.policy)
        trial = self._root / "trials" / slot
        try:
            folder = folder_of(request.task)
            attempt = Attempt(
                request=request,
                limits=self.limits,
                agent=request.harness.agent(),
                environment=request.harness.environment(),
                recorder=recorder,
                folder=folder,
                agent_limit_s=min(self.limits.timeout_s, agent_limit(folder)),
                tests_decide=has_own_tests(request.task),
            )
            async with _with_gateway(attempt):
                with register_attempt(attempt) as key:
                    result = await self._queue.submit(trial_config(attempt, key, slot, self._root))
        except Exception as error:
            empty = Rollout(request.task.task_id, request.sample, "infra", None, list(recorder.turns))
            return mark_failed(empty, f"the trial did not start: {type(error).__name__}: {error}")
        else:
            return harvest(attempt, result)
        finally:
            shutil.rmtree(trial, ignore_errors=True)


@contextlib.asynccontextmanager
async def _with_gateway(attempt: Attempt) -> AsyncGenerator[None]:
    """Serve the policy over HTTP to a Harbor agent while its trial runs."""
    if not isinstance(attempt.agent, ForeignAgent):
        yield
        return
    socket = new_socket() if attempt.environment.name == "bwrap" else None
    async with Gateway(attempt.recorder, socket=socket) as attempt.gateway:
        yield


def _fast_folder() -> Path | None:
    """A folder in memory if there is enough space; None for the system's default."""
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ENOUGH_MEMORY else None
    except OSError:
        return None


# Checks of the installed `harbor` package.

OLDEST = (0, 25)


def require_harbor() -> None:
    """Refuse a missing or insecure Harbor."""
    try:
        installed = version("harbor")
    except PackageNotFoundError:
        raise MissingExtraError("engine 'harbor'", "harbor") from None
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < OLDEST:
        raise TrainingError(
            f"harbor {installed} is installed. Before 0.25 an agent could forge its reward file. "
            "Install harbor>=0.25,<0.26."
        )
    keep_quiet()
    harbor_logger = logging.getLogger("harbor")
    if not harbor_logger.handlers:
        harbor_logger.addHandler(logging.NullHandler())  # failures of a trial are in its rollout
