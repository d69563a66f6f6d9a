"""For tasks that are only a conversation: there is no shell and there are no files.

environment: { kind: none }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

from ..environment import ExecResult, SandboxError


class NoEnvironment:
    """No shell and no files; for tasks that are answered in words."""

    name: ClassVar[str] = "none"

    async def start(self) -> None:
        pass

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        _refuse("run a command")

    async def write_file(self, path: str, data: bytes | str) -> None:
        _refuse(f"write {path!r}")

    async def read_file(self, path: str) -> bytes:
        _refuse(f"read {path!r}")

    async def stop(self) -> None:
        pass


def _refuse(what: str) -> NoReturn:
    raise SandboxError(f"Cannot {what}: this task has no environment; set environment: bwrap.")
