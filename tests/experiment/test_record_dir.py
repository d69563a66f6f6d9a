import json
from pathlib import Path

import pytest

from evsys_sdk.config import ExperimentConfig
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.conclusion.reading import read_evidence
from evsys_sdk.experiment.record_dir import ExperimentDir, open_experiment_dir
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.folders import begin_run

RUN = {"name": "r", "data": {"path": "x.jsonl"}, "model": {"name": "m"}, "algorithm": {"kind": "sft"}}


def config(folder: Path, **more: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "e", "output_dir": str(folder), "run": RUN, **more})


def finished(opened: ExperimentDir, status: str = "completed") -> ExperimentDir:
    with Journal.of(opened.path) as journal:
        journal.append(Kind.ENDED, status=status)
    return opened


def test_a_second_attempt_is_numbered_and_the_first_is_left_alone(tmp_path: Path) -> None:
    opened = [finished(open_experiment_dir(config(tmp_path))).path.name for _ in range(3)]
    assert opened == ["e", "e.2", "e.3"]


def test_what_was_not_finished_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    assert not open_experiment_dir(config(tmp_path)).resumed
    again = finished(open_experiment_dir(config(tmp_path)), "interrupted")
    assert (again.path.name, again.resumed) == ("e", True)
    assert open_experiment_dir(config(tmp_path)).path.name == "e"
    assert open_experiment_dir(config(tmp_path), fresh=True).path.name == "e.2"
    assert open_experiment_dir(config(tmp_path, base_seed=3)).path.name == "e.3"  # it is another experiment


def test_resume_takes_up_the_latest_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        finished(open_experiment_dir(config(tmp_path)))
    assert open_experiment_dir(config(tmp_path), resume=True).path.name == "e.2"


def test_how_it_is_run_may_change_on_the_way(tmp_path: Path) -> None:
    open_experiment_dir(config(tmp_path))
    more = config(tmp_path, max_concurrent_arms=2, arm_timeout_s=60.0)
    opened = open_experiment_dir(more, resume=True)
    assert opened.path.name == "e"
    opened.write_config()
    assert json.loads((opened.path / "config.json").read_text(encoding="utf-8"))["max_concurrent_arms"] == 2


def test_resume_of_nothing_starts(tmp_path: Path) -> None:
    assert open_experiment_dir(config(tmp_path), resume=True).path.name == "e"


def test_resume_with_another_config_names_what_changed(tmp_path: Path) -> None:
    open_experiment_dir(config(tmp_path))
    with pytest.raises(ConfigError, match=r"differs .* in: n_repeats.*without --resume"):
        open_experiment_dir(config(tmp_path, n_repeats=2), resume=True)


def test_a_foreign_folder_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match="not the record of an experiment"):
        open_experiment_dir(config(tmp_path), resume=False)


def test_names_with_special_characters_are_numbered_too(tmp_path: Path) -> None:
    special = config(tmp_path).model_copy(update={"name": "lr[1]*"})
    assert [finished(open_experiment_dir(special)).path.name for _ in range(2)] == ["lr[1]*", "lr[1]*.2"]


def test_starts_are_counted(tmp_path: Path) -> None:
    assert [begin_run(tmp_path / "r", {}) for _ in range(3)] == [1, 2, 3]


def test_a_change_at_a_resume_is_reported_with_both_values(tmp_path: Path) -> None:
    open_experiment_dir(config(tmp_path, description="first", budget={"tokens": 100}))
    opened = open_experiment_dir(config(tmp_path, description="second", budget={"tokens": 900}), resume=True)
    assert opened.changed == {"budget.tokens": [100, 900], "description": ["first", "second"]}
    with Journal.of(opened.path) as journal:
        journal.append(Kind.RESUMED, changed=opened.changed)
        journal.append(Kind.ARM_STARTED, arm="r")
    deviations = read_evidence(opened.path).deviations
    assert deviations == ["It was resumed.", "`budget.tokens` was 100 and then 900."]


def test_taking_up_what_is_concluded_is_no_deviation_unless_something_is_done(tmp_path: Path) -> None:
    path = open_experiment_dir(config(tmp_path)).path
    with Journal.of(path) as journal:
        journal.append(Kind.CONCLUDED, verdict="descriptive")
        journal.append(Kind.RESUMED, changed={})
        assert list(read_evidence(path).deviations) == []
        journal.append(Kind.RESUMED, changed={"budget.usd": [None, 5.0]})
        journal.append(Kind.ARM_STARTED, arm="r")
    assert list(read_evidence(path).deviations) == [
        "It was resumed.",
        "`budget.usd` was not set and then 5.0.",
    ]
