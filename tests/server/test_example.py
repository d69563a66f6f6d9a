"""The example of a server: it scores there what it scores in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import load_yaml
from evsys_sdk.experiment import Experiment

from .serving import ServerProcess

pytestmark = pytest.mark.tinker


def score(folder: Path, backend: dict[str, Any]) -> float:
    config = load_yaml("examples/19_tinker/config.yaml")
    assert config.run is not None
    spec = config.run.backend.model_copy(update=backend)
    config = config.model_copy(
        update={"output_dir": str(folder), "run": config.run.model_copy(update={"backend": spec})}
    )
    [run] = Experiment(config).run().runs
    assert run.status == "completed", run.error
    return run.metrics["eval/exact_match"]


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_the_example_scores_the_same_on_a_server(server: ServerProcess, tmp_path: Path) -> None:
    here = score(tmp_path / "here", {"kind": "mock", "params": {}})
    there = score(tmp_path / "there", {"kind": "tinker", "params": {"base_url": server.url}})
    assert there == here
    assert there >= 0.9
