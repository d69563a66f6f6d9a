"""`e2b`: tests judge the completion in a cloud sandbox of E2B; the exit code of `test.sh` decides.

The template of the sandbox is built from the task's Dockerfile, once per distinct Dockerfile. One folder contains

    model_output.txt   the completion; its path is also in $MODEL_OUTPUT
    test.sh            run with bash in that folder
    test_state.py      if the task has it

If the sandbox cannot be created or is lost, the verifier raises: only tests that ran can fail a completion. Requires
the extra `e2b` and the environment variable E2B_API_KEY.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import weakref
from importlib import import_module
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ...config.base import Strict
from ...errors import EvsysAuthError
from ...log import get_logger
from ...protocols import VerificationResult
from ..verifier import BaseVerifier

FOLDER = "/tmp/evsys"
_KEY = "E2B_API_KEY"
_SPARE_S = 60
"""Lifetime of the sandbox beyond the time limit of the tests, for start and file transfer."""
_TIMED_OUT, _CANNOT_RUN = 124, (126, 127)
_LONGEST_OUTPUT = 4000

# By event loop, because a task can be awaited only in the loop that created it.
type _Builds = dict[str, asyncio.Task[None]]
_builds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Builds] = weakref.WeakKeyDictionary()


class E2BParams(Strict):
    """The sandbox and the tests."""

    dockerfile: str = Field(min_length=1)
    """Content of the Dockerfile of the sandbox; COPY finds no files."""
    test_sh: str = Field(min_length=1)
    """Shell script that judges the completion: exit code 0 passes, any other fails."""
    test_state_py: str = ""
    """Python file that the script may use."""
    timeout_s: int = Field(default=120, ge=1, le=3000)
    """Time limit of the tests in seconds; the completion fails if they exceed it."""
    allow_internet: bool = False
    """Whether the sandbox has internet access while the tests run."""

    @field_validator("dockerfile")
    @classmethod
    def _is_content(cls, value: str) -> str:
        if not re.search(r"^\s*FROM\s+\S", value, re.IGNORECASE | re.MULTILINE):
            raise ValueError("this is not the content of a Dockerfile: it has no FROM. Give the content, not a path.")
        return value


class E2B(BaseVerifier[E2BParams]):
    """1 if the task's tests of the completion pass in an E2B sandbox."""

    name: ClassVar[str] = "e2b"
    Config = E2BParams

    async def verify(self, *, completion: str) -> VerificationResult:
        """Create a sandbox, run the tests in it, and end it."""
        if not os.environ.get(_KEY):
            raise EvsysAuthError(f"verifier 'e2b' needs the environment variable {_KEY}. Set it to a key of E2B.")
        e2b: Any = import_module("e2b")
        try:
            template = await _build_template(e2b, self.cfg.dockerfile)
            sandbox: Any = await e2b.AsyncSandbox.create(
                template=template,
                timeout=self.cfg.timeout_s + _SPARE_S,
                allow_internet_access=self.cfg.allow_internet,
                metadata={"made_by": "evsys-sdk"},
            )
            try:
                return await self._run(e2b, sandbox, completion)
            finally:
                await _kill(sandbox)
        except e2b.AuthenticationException as error:
            raise EvsysAuthError(f"E2B refused the key in {_KEY}: {error}. Correct it.") from error

    async def _run(self, e2b: Any, sandbox: Any, completion: str) -> VerificationResult:
        files = {"model_output.txt": completion, "test.sh": self.cfg.test_sh}
        if self.cfg.test_state_py:
            files["test_state.py"] = self.cfg.test_state_py
        for name, content in files.items():
            await sandbox.files.write(f"{FOLDER}/{name}", content.encode("utf-8", "replace"))
        try:
            # The limit is enforced inside the sandbox, so that E2B's own timeouts indicate errors of E2B.
            done = await sandbox.commands.run(
                f"timeout --kill-after=5 {self.cfg.timeout_s} bash test.sh",
                cwd=FOLDER,
                envs={"MODEL_OUTPUT": f"{FOLDER}/model_output.txt"},
                timeout=self.cfg.timeout_s + _SPARE_S,
            )
        except e2b.CommandExitException as error:  # raised by the E2B SDK for an exit code other than 0
            done = error
        if done.exit_code in _CANNOT_RUN:
            get_logger(__name__).warning("test.sh could not run a command: %s", done.stderr.strip()[-500:])
        info = {"exit_code": done.exit_code, "timed_out": done.exit_code == _TIMED_OUT}
        info |= {"stdout": done.stdout[-_LONGEST_OUTPUT:], "stderr": done.stderr[-_LONGEST_OUTPUT:]}
        return VerificationResult(float(done.exit_code == 0), info)


async def _kill(sandbox: Any) -> None:
    try:
        await sandbox.kill()
    except Exception as error:  # the score is known, and the sandbox ends itself after its lifetime
        get_logger(__name__).warning("an E2B sandbox could not be stopped: %s", error)


async def _build_template(e2b: Any, dockerfile: str) -> str:
    """Return the template for a Dockerfile; concurrent rollouts build it only once."""
    name = f"evsys-{hashlib.sha256(dockerfile.encode('utf-8')).hexdigest()[:24]}"
    builds = _builds.setdefault(asyncio.get_running_loop(), {})
    if name not in builds or _has_failed(builds[name]):
        builds[name] = asyncio.create_task(_build(e2b, name, dockerfile))
    await asyncio.shield(builds[name])  # a cancelled rollout must not cancel the build for other rollouts
    return name


def _has_failed(build: asyncio.Task[None]) -> bool:
    return build.done() and (build.cancelled() or build.exception() is not None)


async def _build(e2b: Any, name: str, dockerfile: str) -> None:
    if await e2b.AsyncTemplate.exists(name):
        return
    with tempfile.TemporaryDirectory() as empty:  # a Dockerfile of a dataset must not copy files of this machine
        template = e2b.AsyncTemplate(file_context_path=empty).from_dockerfile(dockerfile)
        await e2b.AsyncTemplate.build(template, name)
