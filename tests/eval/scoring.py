"""How the tests of verifiers ask for a score."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.environment import ExecResult


async def score(name: str, completion: str, expected: Any = None, /, **params: Any) -> VerificationResult:
    """What a registered verifier says about a completion, on a task called t1."""
    verifier = InProcessVerifier(name, expected, params)
    task = HarborTask("t1", "a question", verifier)
    return await build_verifier(verifier)(VerifierInput("a question", completion, task=task))


async def reward(name: str, completion: str, expected: Any = None, /, **params: Any) -> float:
    return (await score(name, completion, expected, **params)).reward


class FolderEnvironment:
    """A stand-in for a sandbox: commands run on this machine, in a folder of the test, and only the test's own code."""

    name: ClassVar[str] = "unsafe_host"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def exec(
        self, command: str, *, timeout_s: float | None = None, cwd: str | None = None, env: Any = None
    ) -> ExecResult:
        self.commands.append(command)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(
            command, stdout=pipe, stderr=pipe, cwd=self.folder, start_new_session=True
        )
        reading = asyncio.ensure_future(process.communicate())
        _, unfinished = await asyncio.wait([reading], timeout=timeout_s)
        if unfinished:
            os.killpg(process.pid, signal.SIGKILL)
        out, err = await reading
        code = 124 if unfinished else process.returncode or 0
        return ExecResult(out.decode(), err.decode(), code, timed_out=bool(unfinished))

    async def write_file(self, path: str, data: bytes | str) -> None:
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_bytes(data.encode() if isinstance(data, str) else data)

    async def read_file(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()
