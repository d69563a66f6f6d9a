"""`History`: the public way to read experiments from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import evsys_sdk
from evsys_sdk import DataError, History

from .recorded import BEGAN, DAY, write_experiment


def test_experiments_are_selected_counted_and_found(tmp_path: Path) -> None:
    write_experiment(tmp_path, "old", verdict="supported")
    write_experiment(tmp_path, "new", started=BEGAN + DAY, verdict="refuted")
    with History([tmp_path]) as history:
        assert [view.name for view in history.select()] == ["new", "old"]
        assert [view.name for view in history.select(verdicts=["supported"], limit=3)] == ["old"]
        assert history.count() == 2
        found = history.get("old")
        assert isinstance(found, evsys_sdk.ExperimentView)
        assert found == history.select(search="old")[0]
        assert [view.name for view in history.same_question(found)] == ["new"]


def test_a_question_is_that_of_metric_tasks_model_and_backend(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one")
    write_experiment(tmp_path, "loss", mode="min")
    with History([tmp_path]) as history:
        found = history.get("one")
        assert found.question.metric == "val/bench/pass@1"
        assert (found.question.model, found.question.backend, found.question.direction) == ("tiny", "mock", "max")
        assert history.same_question(found) == []


def test_scores_of_a_run_by_seed_and_a_run_that_is_not_there(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one", runs={"base": 0.4, "changed": 0.6})
    with History([tmp_path]) as history:
        view = history.get("one")
        assert history.scores(view)["val/bench/pass@1"].mean == pytest.approx(0.6)
        assert history.scores(view, "base")["val/bench/pass@1"].mean == pytest.approx(0.4)
        with pytest.raises(DataError, match=r"there is no run 'other'. It has: base, changed"):
            history.scores(view, "other")
        with pytest.raises(DataError, match="Did you mean 'newest'"):
            history.select(sort="newst")
