"""What a test does that needs a sandbox where none can be started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

type StartSandbox = Callable[..., Awaitable[BwrapEnvironment]]


def skip_or_fail(problem: str, *, required: bool) -> NoReturn:
    """Skip with the reason; fail where `EVSYS_REQUIRE_BWRAP=1` promises that sandboxes work."""
    if required:
        pytest.fail(f"EVSYS_REQUIRE_BWRAP=1, but no sandbox can be started: {problem}")
    pytest.skip(f"no sandbox can be started (EVSYS_REQUIRE_BWRAP=1 makes this a failure): {problem}")
