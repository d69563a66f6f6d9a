"""`e2b`: tests judge the completion inside a cloud sandbox of E2B; the exit code of `test.sh` decides.

The sandbox is made from the task's Dockerfile, once for each different one. In it lie, in one folder,

    model_output.txt   the completion; its path is also in $MODEL_OUTPUT
    test.sh            run with bash, in that folder
    test_state.py      where the task has one

A sandbox that cannot be made, is lost or is refused raises: only a test that ran can fail a completion. Needs the extra
`e2b` and the environment variable E2B_API_KEY.
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
"""How much longer than the tests the sandbox lives: for starting, writing and answering."""
_TIMED_OUT, _CANNOT_RUN = 124, (126, 127)
_LONGEST_OUTPUT = 4000

# By event loop: a task belongs to the one it was made in, and cannot be awaited in another.
type _Builds = dict[str, asyncio.Task[None]]
_builds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Builds] = weakref.WeakKeyDictionary()


class E2BParams(Strict):
    """The sandbox and the tests."""

    dockerfile: str = Field(min_length=1)
    """Content of the Dockerfile that the sandbox is made from; COPY finds no files."""
    test_sh: str = Field(min_length=1)
    """Shell script that judges the completion: exit code 0 is a pass, any other a failure."""
    test_state_py: str = ""
    """Python file that the script may use."""
    timeout_s: int = Field(default=120, ge=1, le=3000)
    """Longest time for the tests; after that, the completion has failed."""
    allow_internet: bool = False
    """Whether the sandbox may reach the internet while the tests run."""

    @field_validator("dockerfile")
    @classmethod
    def _is_content(cls, value: str) -> str:
        if not re.search(r"^\s*FROM\s+\S", value, re.IGNORECASE | re.MULTILINE):
            raise ValueError("this is not the content of a Dockerfile: it has no FROM. Give the content, not a path.")
        return value


class E2B(BaseVerifier[E2BParams]):
    """1 if the task's tests pass next to the completion in an E2B sandbox."""

    name: ClassVar[str] = "e2b"
    Config = E2BParams

    async def verify(self, *, completion: str) -> VerificationResult:
        """Make the sandbox, run the tests, and let it go again."""
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
            # The limit is kept inside the sandbox, so that E2B's own timeouts can only mean that E2B failed.
            done = await sandbox.commands.run(
                f"timeout --kill-after=5 {self.cfg.timeout_s} bash test.sh",
                cwd=FOLDER,
                envs={"MODEL_OUTPUT": f"{FOLDER}/model_output.txt"},
                timeout=self.cfg.timeout_s + _SPARE_S,
            )
        except e2b.CommandExitException as error:  # how the SDK says that the exit code was not 0
            done = error
        if done.exit_code in _CANNOT_RUN:
            get_logger(__name__).warning("test.sh could not run a command: %s", done.stderr.strip()[-500:])
        info = {"exit_code": done.exit_code, "timed_out": done.exit_code == _TIMED_OUT}
        info |= {"stdout": done.stdout[-_LONGEST_OUTPUT:], "stderr": done.stderr[-_LONGEST_OUTPUT:]}
        return VerificationResult(float(done.exit_code == 0), info)


async def _kill(sandbox: Any) -> None:
    try:
        await sandbox.kill()
    except Exception as error:  # the verdict is in; a sandbox that stays behind ends itself when its time is up
        get_logger(__name__).warning("an E2B sandbox could not be ended: %s", error)


async def _build_template(e2b: Any, dockerfile: str) -> str:
    """The name of the template for a Dockerfile; equal ones are built once, however many rollouts ask at once."""
    name = f"evsys-{hashlib.sha256(dockerfile.encode('utf-8')).hexdigest()[:24]}"
    builds = _builds.setdefault(asyncio.get_running_loop(), {})
    if name not in builds or _has_failed(builds[name]):
        builds[name] = asyncio.create_task(_build(e2b, name, dockerfile))
    await asyncio.shield(builds[name])  # one rollout that is cancelled must not cancel the build for the others
    return name


def _has_failed(build: asyncio.Task[None]) -> bool:
    return build.done() and (build.cancelled() or build.exception() is not None)


async def _build(e2b: Any, name: str, dockerfile: str) -> None:
    if await e2b.AsyncTemplate.exists(name):
        return
    with tempfile.TemporaryDirectory() as empty:  # a Dockerfile out of a dataset must not copy files of this machine
        template = e2b.AsyncTemplate(file_context_path=empty).from_dockerfile(dockerfile)
        await e2b.AsyncTemplate.build(template, name)
