"""Paths of a config start at the project root, from wherever in the project a command or a script is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.paths import in_project, project_root

from .project import BENCH, SFT, change, write_project

CODE = """\
from evsys_sdk import register_verifier

@register_verifier("shouted")
def shouted(completion, expected):
    return float(completion == expected.upper())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as `evsys init-project` lays it out, and the folder of one experiment in it."""
    write_project(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\ndependencies = ["evsys-sdk"]\n', "utf-8")
    folder = tmp_path / "experiments" / "first"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(write_yaml(BENCH), "utf-8")
    monkeypatch.chdir(folder)
    return tmp_path


def test_the_root_is_the_nearest_folder_with_a_workspace_or_a_pyproject_that_names_evsys(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert project_root(inner) == inner
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n', "utf-8")
    assert project_root(inner) == inner
    (tmp_path / "pyproject.toml").write_text("[tool.evsys]\n", "utf-8")
    assert project_root(inner) == tmp_path
    (tmp_path / "a" / ".evsys").mkdir()
    assert project_root(inner) == tmp_path / "a"


def test_a_path_stays_as_it_is_where_the_root_is_the_working_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_project("data/x.jsonl") == project / "data/x.jsonl"
    assert in_project("/data/x.jsonl") == Path("/data/x.jsonl")
    monkeypatch.chdir(project)
    assert in_project("data/x.jsonl") == Path("data/x.jsonl")


def test_a_command_inside_the_folder_of_an_experiment(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--deep", "config.yaml"]) == 0
    assert main(["run", "config.yaml", "--quiet"]) == 0
    assert (project / "outputs" / "sft" / "config.json").is_file()
    assert not (project / "experiments" / "first" / "outputs").exists()
    capsys.readouterr()
    assert main(["history", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["experiments"]] == ["sft"]


@pytest.mark.e2e
def test_the_script_of_an_experiment_runs_inside_its_folder_with_the_projects_own_code(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "__init__.py").write_text(CODE, "utf-8")
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('[tool.evsys]\nimports = ["src"]\n')
    own = change(SFT, {"run.data.transforms.0.params.assistant_template": "{tool}"})
    own["metadata"] = {"benchmark": {"name": "own", "path": "data/shouted.jsonl"}}
    rows = (project / "data" / "tasks.jsonl").read_text("utf-8").replace("exact_match", "shouted")
    (project / "data" / "shouted.jsonl").write_text(rows, "utf-8")
    folder = project / "experiments" / "first"
    (folder / "config.yaml").write_text(write_yaml(own), "utf-8")
    script = 'from evsys_sdk import Experiment\n\nif __name__ == "__main__":\n    '
    (folder / "run.py").write_text(
        f'{script}print(Experiment.from_yaml("config.yaml").run().runs[0].metrics["test/own/pass@1"])\n', "utf-8"
    )
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr
    assert (project / "outputs" / "sft" / "r" / "run_result.json").is_file()


def test_the_project_of_the_file_is_named_where_it_is_not_the_one_that_was_started_in(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["validate", "--deep", str(project / "experiments/first/config.yaml")]) == 1
    said = capsys.readouterr().err
    assert f"belongs to the project in {project}, whose pyproject.toml was not read: start evsys there." in said


def test_resume_takes_a_corrected_evaluation_and_scores_with_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"metrics": [{"kind": "exact_match"}], "inference": {"kind": "mock", "params": {"checkpoint": "nowhere"}}}
    held_out = {"path": "data/chats.jsonl"}
    path = Path("config.yaml")
    path.write_text(write_yaml(change(SFT, {"run.eval": {**wrong, "eval_data": held_out}})), "utf-8")
    assert main(["run", "config.yaml", "--quiet"]) == 2
    right = {"metrics": [{"kind": "exact_match"}], "eval_data": held_out}
    path.write_text(write_yaml(change(SFT, {"run.eval": right, "run.tags": ["mended"]})), "utf-8")
    capsys.readouterr()
    assert main(["run", "config.yaml", "--quiet", "--resume", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"].endswith("outputs/sft")
    assert "eval/exact_match" in answer["runs"][0]["metrics"]


@pytest.mark.parametrize(
    ("edits", "named"),
    [
        ({"run.algorithm.params.max_steps": 3}, "run.algorithm.params.max_steps"),
        ({"run.data.path": "data/test.jsonl"}, "run.data.path"),
        ({"run.model.name": "other"}, "run.model.name"),
        ({"metadata.hypothesis": "something else"}, "metadata.hypothesis"),
        ({"metadata.success_metric": "final_loss"}, "metadata.success_metric"),
    ],
)
def test_resume_names_what_would_train_or_claim_something_else(
    edits: dict[str, object], named: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "config.yaml", "--quiet"]) == 0
    Path("config.yaml").write_text(write_yaml(change(BENCH, edits)), "utf-8")
    assert main(["run", "config.yaml", "--quiet", "--resume"]) == 1
    assert f"outputs/sft in: {named}." in capsys.readouterr().err
