"""Harbor's environment as our agents and verifiers see one."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..environment import Environment, EnvironmentFileError, EnvironmentFileNotFoundError, ExecResult
from .attempt import Attempt
from .native_environment import NativeEnvironment

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

_MOST_BYTES = 64 * 1024 * 1024


class EnvironmentView:
    """One of Harbor's own environments; Harbor starts and stops it."""

    name: ClassVar[str] = "harbor"

    def __init__(self, inner: BaseEnvironment) -> None:
        self._inner = inner

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        seconds = None if timeout_s is None else math.ceil(timeout_s)
        done = await self._inner.exec(command, cwd=cwd, env=dict(env) if env else None, timeout_sec=seconds)
        return ExecResult(done.stdout or "", done.stderr or "", done.return_code, timed_out=done.return_code == 124)

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
    """What an agent or a verifier of ours works with: our own environment where there is one below Harbor's."""
    return EnvironmentView(environment) if isinstance(attempt.environment, NativeEnvironment) else attempt.environment
