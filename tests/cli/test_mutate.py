"""`evsys mutate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evsys_sdk import validate_yaml
from evsys_sdk.cli.main import main

CONFIG = """
name: parent
output_dir: out
run:
  name: r
  data: { source_kind: in_memory, rows: [{ text: x }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { learning_rate: 0.01 } }
  backend: { kind: mock }
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return "config.yaml"


def test_a_child_is_printed_as_a_file_that_runs(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mutate", config, "--seed", "3"]) == 0
    (tmp_path / "child.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert validate_yaml(tmp_path / "child.yaml", deep=True).parent_experiment_id == "parent"


def test_children_are_written_to_a_folder(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutate", config, "--n", "3", "-o", "children", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["children"]) == len(list((tmp_path / "children").iterdir())) == 3
    for child in answer["children"]:
        assert Path(child["path"]).read_text(encoding="utf-8") == child["yaml"]
        assert list(child["changes"])
    assert main(["mutate", config, "--n", "3", "-o", "children"]) == 0
    assert " -> " in capsys.readouterr().out


def test_it_says_when_there_are_not_as_many_as_asked_for(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutate", config, "--n", "9", "--only", "algorithm.params.lr_schedule"]) == 0
    assert "only 2 different neighbours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mutate", "missing.yaml"], "missing.yaml"),
        (["mutate", "config.yaml", "--only", "algorithm.params.lerning_rate"], "Did you mean"),
        (["mutate", "config.yaml", "--n", "0"], "--n"),
        (["mutate", "config.yaml", "--freeze", "algorithm"], "leaves no field"),
    ],
)
def test_bad_input_gets_a_sentence(
    config: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
