from pathlib import Path

import pytest

from evsys_sdk.config import ExperimentConfig
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.record_dir import begin_run, open_experiment_dir

RUN = {"name": "r", "data": {"path": "x.jsonl"}, "model": {"name": "m"}, "algorithm": {"kind": "sft"}}


def config(folder: Path, **more: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "e", "output_dir": str(folder), "run": RUN, **more})


def test_a_second_attempt_is_numbered_and_the_first_is_left_alone(tmp_path: Path) -> None:
    opened = [open_experiment_dir(config(tmp_path), resume=False).path.name for _ in range(3)]
    assert opened == ["e", "e.2", "e.3"]


def test_resume_takes_up_the_latest_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        open_experiment_dir(config(tmp_path), resume=False)
    assert open_experiment_dir(config(tmp_path), resume=True).path.name == "e.2"


def test_resume_of_nothing_starts(tmp_path: Path) -> None:
    assert open_experiment_dir(config(tmp_path), resume=True).path.name == "e"


def test_resume_with_another_config_names_what_changed(tmp_path: Path) -> None:
    open_experiment_dir(config(tmp_path), resume=False)
    with pytest.raises(ConfigError, match=r"differs .* in: description.*without --resume"):
        open_experiment_dir(config(tmp_path, description="new"), resume=True)


def test_a_foreign_folder_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match="not the record of an experiment"):
        open_experiment_dir(config(tmp_path), resume=False)


def test_names_with_special_characters_are_numbered_too(tmp_path: Path) -> None:
    special = config(tmp_path).model_copy(update={"name": "lr[1]*"})
    assert [open_experiment_dir(special, resume=False).path.name for _ in range(2)] == ["lr[1]*", "lr[1]*.2"]


def test_starts_are_counted(tmp_path: Path) -> None:
    assert [begin_run(tmp_path / "r", {}) for _ in range(3)] == [1, 2, 3]
