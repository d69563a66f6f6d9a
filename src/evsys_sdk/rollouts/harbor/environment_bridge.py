"""Adapter of our environments, so that Harbor's agents and shell verifiers run without a container."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import io
import shlex
import tarfile
import uuid
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trial.paths import EnvironmentPaths

from ..environment import Environment, EnvironmentFileError, SandboxError, upload_dir
from .attempt import find_attempt
from .task_folder import container_of, refuse_container

_WITHOUT_NETWORK = ("none", "bwrap")
_MOST_MEMBERS = 10_000
_MOST_BYTES = 256 * 1024 * 1024
_CLEAR = """set -e
for folder in {folders}; do
    chmod u+rwx "$(dirname "$folder")" 2>/dev/null || true
    if [ -L "$folder" ] || [ ! -d "$folder" ]; then rm -rf "$folder"; fi
    mkdir -p "$folder"
    chmod -R u+rwx "$folder"
    find "$folder" -mindepth 1 -delete
    chmod 777 "$folder"
done
"""


class BridgeEnvironment(BaseEnvironment):
    """The environment of the attempt with the given key."""

    def __init__(self, *args: Any, attempt: str, **kwargs: Any) -> None:
        self._attempt = find_attempt(attempt)
        self._ours: Environment = self._attempt.environment
        self._is_first = not self._attempt.started
        self._keep_processes = self._tests_are_next = False
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "evsys"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=self._ours.name in _WITHOUT_NETWORK)

    def _validate_definition(self) -> None:
        if self._attempt.folder is not None:
            refuse_container(self._attempt.request.task, self._ours)

    async def start(self, force_build: bool) -> None:
        if not self._is_first:  # a task may verify in a second environment
            self._ours = self._attempt.request.harness.environment()
        await self._ours.start()
        if self._is_first:
            self._attempt.started, self._attempt.sandbox = True, self
        # Harbor's agents write logs there, even for a task without a folder.
        if self._attempt.folder is not None or (self._attempt.gateway is not None and self._ours.name != "none"):
            folders = [str(EnvironmentPaths.verifier_dir), str(EnvironmentPaths.agent_dir)]
            await self.exec(f"mkdir -p {shlex.join(folders)}")
        if self._attempt.folder is None:
            return
        image_has_files = container_of(self._attempt.folder) is not None
        if self.environment_dir.is_dir() and any(self.environment_dir.iterdir()) and not image_has_files:
            await upload_dir(self._ours, self.environment_dir, self.task_env_config.workdir or ".")

    async def stop(self, delete: bool) -> None:
        if self._is_first:
            self._attempt.sandbox = None
        await self._ours.stop()

    async def clear_for_tests(self, *, keep_processes: bool) -> None:
        """Remove the agent's files where tests are installed and write, and its processes."""
        self._keep_processes = keep_processes
        await self._end_processes()
        folders = shlex.join([str(EnvironmentPaths.tests_dir), str(EnvironmentPaths.verifier_dir)])
        cleared = await self._ours.exec(_CLEAR.format(folders=folders))
        if cleared.exit_code:
            reason = cleared.stderr.strip()
            raise SandboxError(f"/tests and /logs/verifier cannot be cleared before the tests: {reason}")
        self._tests_are_next = True

    async def _end_processes(self) -> None:
        end: Any = getattr(self._ours, "kill_processes", None)
        if end is not None and not self._keep_processes:
            await end()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        limits = self._attempt.limits
        result = await self._ours.exec(
            command,
            # Without a limit, Harbor means "until the end of the phase".
            timeout_s=max(limits.timeout_s, limits.verify_timeout_s) if timeout_sec is None else timeout_sec,
            cwd=cwd or self.task_env_config.workdir,
            env={**self._own_variables(), **(self._merge_env(env) or {})},
        )
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    def _own_variables(self) -> dict[str, str]:
        if self._tests_are_next:
            # Ignore user site-packages, where an agent could plant code that runs inside the tests.
            return {"PYTHONNOUSERSITE": "1"}
        return self._attempt.gateway.variables() if self._attempt.gateway is not None else {}

    def is_path_mounted(self, environment_path: Any, host_path: Path) -> bool:
        # Skip downloading agent logs: the rollout has the turns, and the folder is removed afterwards.
        return self._attempt.folder is None or str(environment_path) == str(EnvironmentPaths.agent_dir)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._ours.write_file(target_path, Path(source_path).read_bytes())

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await upload_dir(self._ours, Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).write_bytes(await self._ours.read_file(source_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        if self._tests_are_next:  # the reward is read now; no process may change it later
            await self._end_processes()
        archive = f"/tmp/.evsys-{uuid.uuid4().hex}.tar"
        packed = await self._ours.exec(f"tar -cf {archive} -C {shlex.quote(source_dir)} .")
        if packed.exit_code:
            raise EnvironmentFileError(f"{source_dir}: cannot be packed in the environment: {packed.stderr.strip()}")
        content = await self._ours.read_file(archive)
        await self._ours.exec(f"rm -f {archive}")
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(target_dir, members=_check_archive(tar, source_dir), filter=transfer_tar_filter)


def _check_archive(tar: tarfile.TarFile, source: str) -> list[tarfile.TarInfo]:
    """The members of an archive from a sandbox; an archive too large for this machine is refused."""
    members: list[tarfile.TarInfo] = []
    size = 0
    for member in tar:
        members.append(member)
        size += member.size
        if len(members) > _MOST_MEMBERS or size > _MOST_BYTES:
            raise EnvironmentFileError(f"{source}: has more than {_MOST_MEMBERS} files or {_MOST_BYTES} bytes.")
    return members
