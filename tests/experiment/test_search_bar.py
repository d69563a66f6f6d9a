"""Halving finds what a grid finds for a fraction of its work, on twenty problems that are really trained."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evsys_sdk.experiment import Experiment
from evsys_sdk.record.events import Event, read_events

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
END_TO_END = (303, 314)
"""Problems that are not only decided by the curves of the grid, but halved for real."""


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    """The benchmark, which holds the problems."""
    spec = importlib.util.spec_from_file_location("halving_benchmark", BENCHMARKS / "halving.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["halving_benchmark"] = module  # its dataclasses look themselves up
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def recorded_decisions(path: Path) -> list[dict[str, Any]]:
    events = [event for event in map(Event.to_dict, read_events(path)) if event["kind"] == "search_decision"]
    return [{key: value for key, value in event.items() if key not in ("id", "time", "kind")} for event in events]


@pytest.mark.slow
def test_halving_finds_the_winner_of_the_grid_for_at_most_two_fifths_of_its_steps(
    suite: ModuleType, tmp_path: Path
) -> None:
    hits: list[bool] = []
    for number in range(suite.FIRST, suite.FIRST + suite.PROBLEMS):
        folder = tmp_path / str(number)
        suite.write_problem(number, folder)
        experiment = Experiment(suite.config(number, folder, "grid"))
        grid = suite.trained_by(experiment.run())
        best = suite.best_of(grid)
        # Pausing changes no score, so that halving's own code can be asked what it would have done with these curves.
        found, notes = suite.halved(experiment, grid)
        hits.append(found.score == best.score and found.steps <= suite.MOST_WORK * best.steps)
        if number in END_TO_END:
            result = Experiment(suite.config(number, folder, "halving", suite.SEARCH.model_dump())).run()
            assert suite.best_of(suite.trained_by(result)) == found
            assert recorded_decisions(result.path) == json.loads(json.dumps(notes))
    assert len(hits) >= 20
    assert sum(hits) >= suite.LEAST_FOUND * len(hits), hits
