"""The engine `harbor`: every rollout is a trial of Harbor, with its task folders, agents, environments and verifiers.

It costs several milliseconds more per rollout than `inline`, so it is for tasks that need Harbor. Trials write files;
they are kept in memory where the machine offers that, and removed as soon as a trial is over.
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
    """Runs rollouts as trials, on its own event loop: starting many of them at once would stall another."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        require_harbor()
        super().__init__(limits)
        self._root = Path()
        self._queue: Any = None
        self._remove_files: Callable[[], Any] = lambda: None

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start trials; tasks that could only fail here are refused before the first."""
        for request in requests:
            if is_task_folder(Path(str(request.task.metadata.get("task_dir", "")))):  # else that rollout says so
                refuse_containers([request.task], request.harness.environment)
        return super().submit(requests)

    def close(self) -> None:
        super().close()
        self._remove_files()

    def _open(self) -> None:
        from .trial import open_queue

        super()._open()
        self._root = Path(tempfile.mkdtemp(prefix="evsys-harbor-", dir=_fast_folder()))
        # Also for an engine that no one closes: these files are in memory.
        self._remove_files = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._queue = open_queue(self.limits.concurrency)

    async def _attempt(self, request: RolloutRequest, slot: str) -> Rollout:
        # Harbor keeps loggers named after every trial permanently, so trials take turns at few names.
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
    """Let an agent of Harbor's ask the policy over HTTP, for as long as its trial runs."""
    if not isinstance(attempt.agent, ForeignAgent):
        yield
        return
    socket = new_socket() if attempt.environment.name == "bwrap" else None
    async with Gateway(attempt.recorder, socket=socket) as attempt.gateway:
        yield


def _fast_folder() -> Path | None:
    """A folder in memory if there is room in it; otherwise the system's choice."""
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ENOUGH_MEMORY else None
    except OSError:
        return None


# The `harbor` package: whether it is there, new enough, and quiet.

OLDEST = (0, 25)


def require_harbor() -> None:
    """Refuse to continue without a Harbor that can be trusted."""
    try:
        found = version("harbor")
    except PackageNotFoundError:
        raise MissingExtraError("engine 'harbor'", "harbor") from None
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST:
        raise TrainingError(
            f"harbor {found} is installed, and before 0.25 an agent could write its own reward file and be believed. "
            "Install harbor>=0.25,<0.26."
        )
    keep_quiet()
    harbor_logger = logging.getLogger("harbor")
    if not harbor_logger.handlers:
        harbor_logger.addHandler(logging.NullHandler())  # what goes wrong in a trial is recognised by its rollout
