"""Environments that Harbor brings along: `harbor:docker`, `harbor:modal`, `harbor:daytona` and the rest of its types.

environment: { kind: "harbor:docker", params: { docker_image: "python:3.12" } }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from pydantic import Field

from ...config.base import Strict
from ..environment import ExecResult, SandboxError


class NativeConfig(Strict):
    """Params of Harbor's own environments."""

    docker_image: str | None = None
    """Image for tasks that are plain rows; a task folder names its own."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors, instead of what the task asks for."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Memory, instead of what the task asks for."""
    force_build: bool = False
    """Whether to build the image even if it exists."""
    kwargs: dict[str, Any] = {}
    """Passed on to Harbor's environment."""


class NativeEnvironment:
    """One of the environments that Harbor brings along, used by engine `harbor` only."""

    name: ClassVar[str] = "harbor:docker"
    Config = NativeConfig
    type: ClassVar[str] = "docker"

    def __init__(self, **params: Any) -> None:
        self.cfg = NativeConfig(**params)

    @classmethod
    def member(cls, name: str) -> type[NativeEnvironment]:
        """The class behind `harbor:TYPE`."""
        kind = name.partition(":")[2]
        return type("NativeEnvironment", (cls,), {"name": name, "type": kind, "__doc__": f"Harbor's {kind}."})

    async def start(self) -> None:
        self._refuse()

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        self._refuse()

    async def write_file(self, path: str, data: bytes | str) -> None:
        self._refuse()

    async def read_file(self, path: str) -> bytes:
        self._refuse()

    async def stop(self) -> None:
        pass

    def _refuse(self) -> NoReturn:
        raise SandboxError(f"The environment {self.name!r} exists only inside a Harbor trial; set engine: harbor.")
