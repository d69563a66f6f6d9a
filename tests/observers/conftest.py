from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.training.callback import RunInfo

type MakeInfo = Callable[..., RunInfo]


@pytest.fixture
def make_info(tmp_path: Path) -> MakeInfo:
    """A run in the test's own folder; `steps_done` above 0 makes it one that resumes."""

    def make(**changes: Any) -> RunInfo:
        config = {"algorithm": {"kind": "sft", "params": {"learning_rate": 0.001}}, "backend": {"kind": "mock"}}
        values: dict[str, Any] = {"config": config, "total_steps": 10, "run_dir": tmp_path / "run"}
        return RunInfo(
            **({"experiment": "arithmetic", "run_id": "arm-a", "hypothesis": "It learns."} | values | changes)
        )

    return make
