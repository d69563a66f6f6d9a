"""The example of a Ray cluster: the same scores as processes on this machine give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import load_yaml
from evsys_sdk.experiment import Experiment

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


def scores(example: str, folder: Path) -> dict[str, float]:
    config = load_yaml(f"examples/{example}/config.yaml").model_copy(update={"output_dir": str(folder), "n_repeats": 2})
    result = Experiment(config).run()
    assert {run.status for run in result.runs} == {"completed"}, [run.error for run in result.runs]
    return {run.run_id: run.metrics["test/routing/pass@1"] for run in result.runs}


@pytest.mark.usefixtures("examples")
def test_the_sweep_on_a_cluster_scores_what_the_sweep_here_scores(tmp_path: Path) -> None:
    actual = scores("16_ray_sweep", tmp_path)
    ray.shutdown()
    assert actual == scores("04_sweep", tmp_path)
    assert max(actual.values()) > 0.8
