"""`rl` on the mock backend, whatever backend the run names: for trying a config without spending anything."""

from __future__ import annotations

from typing import ClassVar

from .rl import RL


class MockRL(RL):
    """Policy gradient that always runs on the mock backend."""

    name: ClassVar[str] = "mock_rl"
    pinned_backend: ClassVar[str | None] = "mock"
