"""Sandboxes for tests: real ones where the machine allows it, and a visible reason where it does not."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.rollouts.environment import Environment, SandboxError, running
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment
from evsys_sdk.rollouts.environments.unsafe_host import UnsafeHostEnvironment

from .bwrap_on_this_machine import StartSandbox, skip_or_fail

# Read now: settings are taken out of the environment before each test.
REQUIRED = os.environ.get("EVSYS_REQUIRE_BWRAP") == "1"


@pytest.fixture(scope="session")
def bwrap_problem() -> str:
    """Why no sandbox can be started here; empty when one can."""

    async def start_and_stop() -> None:
        async with running(BwrapEnvironment()):
            pass

    try:
        with ThreadPoolExecutor() as thread:  # a test's own event loop may be running here
            thread.submit(lambda: asyncio.run(start_and_stop())).result()
    except SandboxError as error:
        return str(error)
    return ""


@pytest.fixture
def needs_bwrap(bwrap_problem: str) -> None:
    if bwrap_problem:
        skip_or_fail(bwrap_problem, required=REQUIRED)


@pytest.fixture
async def start_sandbox(needs_bwrap: None) -> AsyncIterator[StartSandbox]:
    """Starts sandboxes, and stops them after the test."""
    started: list[BwrapEnvironment] = []

    async def start(**params: Any) -> BwrapEnvironment:
        sandbox = BwrapEnvironment(**params)
        started.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in started:
        await sandbox.stop()


@pytest.fixture
async def sandbox(start_sandbox: StartSandbox) -> BwrapEnvironment:
    return await start_sandbox()


@pytest.fixture(params=[BwrapEnvironment, UnsafeHostEnvironment], ids=["bwrap", "unsafe_host"])
def environment_class(request: pytest.FixtureRequest) -> Any:
    """Each environment with a shell."""
    if request.param is BwrapEnvironment:
        request.getfixturevalue("needs_bwrap")
    return request.param


@pytest.fixture
async def environment(environment_class: Any) -> AsyncIterator[Environment]:
    """Each environment with a shell, started."""
    async with running(environment_class(files={"given.txt": "from the start"})) as started:
        yield started


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A folder that other users may enter, since a sandbox started by root runs as one, and that is not below /tmp."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
