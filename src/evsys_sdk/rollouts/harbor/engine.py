"""The engine `harbor`: every rollout is a trial of Harbor, with its task folders, agents, environments and verifiers.

It costs several milliseconds more per rollout than `inline`, so it is for tasks that need Harbor. Trials write files;
they are kept in memory where the machine offers that, and removed as soon as a trial is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...backends.future import Operation
from ...errors import MissingExtraError, TrainingError
from ..engine import EngineLimits, LoopThread, RolloutRequest
from ..gateway import Gateway
from ..policy import RecordingPolicy
from ..relay import new_socket
from ..rollout import Rollout
from .attempt import Attempt, register_attempt
from .native import ForeignAgent, keep_quiet
from .task_folder import agent_limit, folder_of, has_own_tests, is_task_folder, refuse_containers

_MEMORY = Path("/dev/shm")
_ENOUGH_MEMORY = 256 * 1024 * 1024


class HarborEngine:
    """Runs rollouts as trials, on its own event loop: starting many of them at once would stall another."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        require_harbor()
        self.limits = limits or EngineLimits()
        self._loop: LoopThread | None = None
        self._root: Path | None = None
        self._queue: Any = None
        self._names: asyncio.LifoQueue[str] = asyncio.LifoQueue()

    def submit(self, requests: Sequence[RolloutRequest]) -> Operation[list[Rollout]]:
        """Start trials; tasks that could only fail here are refused before the first."""
        for request in requests:
            if is_task_folder(Path(str(request.task.metadata.get("task_dir", "")))):  # else that rollout says so
                refuse_containers([request.task], request.harness.environment)
        if self._loop is None or not self._loop.is_alive:
            self._open()
            self._loop = LoopThread("evsys-harbor")
        return self._loop.submit(self._run_all(list(requests)), what=f"{len(requests)} trials")

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Submit and await."""
        return await self.submit(requests)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _open(self) -> None:
        from .trial import open_queue

        self._root = Path(tempfile.mkdtemp(prefix="evsys-harbor-", dir=_fast_folder()))
        # Also for an engine that no one closes: these files are in memory.
        weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._queue = open_queue(self.limits.concurrency)
        self._names = asyncio.LifoQueue()
        # Harbor keeps loggers named after every trial permanently, so trials take turns at few names.
        for number in range(self.limits.concurrency):
            self._names.put_nowait(f"trial-{number}")

    async def _run_all(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        return list(await asyncio.gather(*(self._run_one(request) for request in requests)))

    async def _run_one(self, request: RolloutRequest) -> Rollout:
        number = 0
        while True:
            number += 1
            name = await self._names.get()
            try:
                rollout = await self._attempt(request, name)
            finally:
                self._names.put_nowait(name)
            if rollout.status != "infra" or number >= self.limits.attempts:
                return replace(rollout, attempts=number)

    async def _attempt(self, request: RolloutRequest, name: str) -> Rollout:
        """One trial from its start to its end; whatever goes wrong is part of the result."""
        from .trial import harvest, mark_failed, trial_config

        assert self._root is not None
        began = time.perf_counter()
        recorder = RecordingPolicy(request.policy)
        trial = self._root / "trials" / name
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
                    result = await self._queue.submit(trial_config(attempt, key, name, self._root))
        except Exception as error:
            empty = Rollout(request.task.task_id, request.sample, "infra", None, list(recorder.turns))
            rollout = mark_failed(empty, f"the trial did not start: {type(error).__name__}: {error}")
        else:
            rollout = harvest(attempt, result)
            if folder is not None:
                kept = keep_artifacts(trial / "artifacts", request)
                rollout = replace(rollout, info={**rollout.info, **kept})
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        return replace(rollout, seconds=time.perf_counter() - began)


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


# What a task folder declares as artifacts: fetched by Harbor at the end of a trial, kept here before its files go.
#
# They were made by an agent, so only regular files are taken, and no more than fit a record.

MANIFEST = "manifest.json"
_CONVENTION = "/logs/artifacts"
_MOST_FILES = 1000
_LONGEST_INLINE = 16 * 1024


def keep_artifacts(fetched: Path, request: RolloutRequest) -> dict[str, Any]:
    """What becomes part of a rollout's `info`: each file, with its place in the record or, without one, its text."""
    target = _folder_for(request)
    listed: list[dict[str, Any]] = []
    found = sorted(path for path in fetched.rglob("*") if path.is_file() and not path.is_symlink())
    files = [path for path in found if path.name != MANIFEST or path.parent != fetched]
    for path in files[:_MOST_FILES]:
        content, name = path.read_bytes(), path.relative_to(fetched).as_posix()
        entry: dict[str, Any] = {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if target is not None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
            entry["kept_at"] = (target / name).relative_to(target.parents[2]).as_posix()
        else:
            entry["text"] = content[:_LONGEST_INLINE].decode("utf-8", "replace")
        listed.append(entry)
    if len(files) > _MOST_FILES:
        listed.append({"path": f"and {len(files) - _MOST_FILES} more files", "problem": "too many to keep"})
    listed += _list_missing(fetched / MANIFEST)
    return {"artifacts": listed} if listed else {}


def _folder_for(request: RolloutRequest) -> Path | None:
    if request.artifacts_dir is None:
        return None
    task = re.sub(r"[^\w.-]+", "_", request.task.task_id).lstrip(".")[:80]
    unique = hashlib.sha256(request.task.task_id.encode()).hexdigest()[:8]
    return request.artifacts_dir / f"{task}-{unique}" / str(request.sample)


def _list_missing(manifest: Path) -> list[dict[str, Any]]:
    """Artifacts that the task declares and that could not be fetched: said, not left out."""
    try:
        entries: list[dict[str, Any]] = json.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    failed = [str(entry["source"]) for entry in entries if entry["status"] == "failed"]
    failed = [source for source in failed if source.rstrip("/") != _CONVENTION]  # which a task need not have
    return [{"path": source, "problem": "it could not be fetched"} for source in failed]


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
