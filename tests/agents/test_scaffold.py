"""A project and its experiments from nothing: the tree, what may stand in the way, and the whole path by its hints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from evsys_sdk.config import load_yaml
from evsys_sdk.errors import EvsysError
from evsys_sdk.scaffold.experiment import derive_experiment, new_experiment
from evsys_sdk.scaffold.project import init_project

TREE = [
    ".evsys/.gitignore",
    ".gitignore",
    ".python-version",
    "AGENTS.md",
    "CLAUDE.md",
    "README.md",
    "data/benchmark/tickets_test/metadata.yaml",
    "data/benchmark/tickets_test/tasks.jsonl",
    "data/datasets/tickets/v1/metadata.yaml",
    "data/datasets/tickets/v1/test.jsonl",
    "data/datasets/tickets/v1/train.jsonl",
    "data/fetch/write_tickets.py",
    "data/process/split_tickets.py",
    "data/raw/.gitkeep",
    "data/raw/tickets.jsonl",
    "data/validation/tickets_val/metadata.yaml",
    "data/validation/tickets_val/tasks.jsonl",
    "experiments/.gitkeep",
    "pyproject.toml",
    "src/__init__.py",
    "src/metrics.py",
    "src/transforms.py",
    "src/verifiers.py",
]


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Path:
    root = init_project("shop").root
    monkeypatch.chdir(root)
    return root


def evsys(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evsys_sdk", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_tree_is_the_one_that_every_project_has(project: Path) -> None:
    assert sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()) == TREE
    assert 'name = "shop"' in (project / "pyproject.toml").read_text("utf-8")


def test_no_case_is_in_two_parts_and_none_is_empty(project: Path) -> None:
    parts = [path.read_text("utf-8").splitlines() for path in sorted((project / "data").glob("[bdv]*/**/*.jsonl"))]
    texts = [{row.get("ticket") or row["instruction"].partition("? ")[2] for row in map(json.loads, p)} for p in parts]
    assert len(texts) == 4
    assert all(len(part) > 20 for part in texts)
    assert sum(map(len, texts)) == len(set().union(*texts))


def test_the_project_holds_to_the_style_it_is_checked_by(project: Path) -> None:
    new_experiment("first")
    command = ["ruff", "check", "--isolated", "--line-length=120", "--select=E,F,I,UP,B,RUF", "--target-version=py312"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "."], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(EvsysError, match=r"not empty \(notes\.txt\)"):
        init_project("mine", into=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_fresh_git_checkout_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert init_project("mine", into=tmp_path).root == tmp_path


@pytest.mark.parametrize("name", ["", "-x", "a b", "é", "..", "x/"])
def test_a_name_that_no_package_can_have_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    if name == "x/":  # the shell's completion adds the slash
        assert init_project(name).root.name == "x"
        return
    with pytest.raises(EvsysError, match=r"cannot be the name of a project|not empty"):
        init_project(name)
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_is_for_the_data_of_the_project(project: Path) -> None:
    experiment = new_experiment("first", today=date(2026, 3, 1))
    assert experiment.config == project / "experiments" / "20260301_first" / "config.yaml"
    config = load_yaml(experiment.config)
    assert config.name == "20260301_first"
    assert [(entry.name, entry.role) for entry in config.metadata.benchmark] == [
        ("tickets_val", "val"),
        ("tickets_test", "test"),
    ]
    [run] = config.all_runs()
    assert run.data is not None
    assert run.data.dataset_name == "tickets"
    assert [spec.kind for spec in run.data.transforms] == ["ticket_to_chat"]


def test_rows_that_say_nothing_about_themselves_get_a_proposal(project: Path) -> None:
    folder = project / "data" / "datasets" / "quiz" / "v1"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n', encoding="utf-8")
    [run] = load_yaml(new_experiment("quiz", dataset="quiz").config).all_runs()
    assert run.data is not None
    assert run.data.transforms[0].params == {"user_template": "{question}", "assistant_template": "{answer}"}


def test_mock_trains_its_own_model_and_another_backend_is_two_lines(project: Path) -> None:
    here, there = new_experiment("one"), new_experiment("two", backend="local")
    lines = zip(*(made.config.read_text("utf-8").splitlines() for made in (here, there)), strict=True)
    mock = ["  model: { name: tiny }", "  backend: { kind: mock }"]
    assert [one for one, two in lines if one != two and "name: 2" not in one] == mock


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slug": "Not This"}, "Try 'not-this'"),
        ({"slug": "../up"}, "Try 'up'"),
        ({"slug": "ok", "dataset": "ticket"}, "Choose one of: tickets"),
        ({"slug": "ok", "backend": "mok"}, "did you mean 'mock'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(project: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(EvsysError, match=said):
        new_experiment(**options)
    assert [path.name for path in (project / "experiments").iterdir()] == [".gitkeep"]


def test_an_experiment_is_never_overwritten(project: Path) -> None:
    experiment = new_experiment("first")
    experiment.config.write_text("mine", encoding="utf-8")
    with pytest.raises(EvsysError, match="exists already"):
        new_experiment("first")
    assert experiment.config.read_text("utf-8") == "mine"


def test_outside_of_a_project_the_error_names_how_to_make_one() -> None:
    with pytest.raises(EvsysError, match="evsys init-project NAME"):
        new_experiment("first")


@pytest.mark.slow
@pytest.mark.e2e
def test_the_printed_hints_lead_from_an_empty_folder_to_the_conclusion_and_on(tmp_path: Path) -> None:
    output = evsys("init-project", "shop", cwd=tmp_path)
    where, commands = tmp_path, [["init-project", "shop"]]
    hints = [line.split() for line in output.stdout.splitlines() if line.startswith("  ")]
    while hints:
        word, *arguments = hints.pop(0)
        if word == "cd":
            where /= arguments[0]
            continue
        commands.append(arguments)
        output = evsys(*arguments, *(["--quiet"] if arguments[0] == "run" else []), cwd=where)
        assert output.returncode == 0, output.stderr
        assert not (arguments[0] == "validate" and output.stderr), "a warning about one's first experiment"
        if arguments[0] == "new-experiment":
            hints += [line.split()[0:] for line in output.stdout.splitlines() if line.startswith("  ")]
    verbs = [command[0] for command in commands]
    assert verbs == ["init-project", "new-experiment", "validate", "plan", "run", "history", "context"]
    assert "Training on tickets raises pass@1 over the model before training: supported" in output.stdout

    _go_on(where)


def _go_on(root: Path) -> None:
    name = next((root / ".evsys" / "runs").glob("*_first")).name
    before = Path.cwd()
    os.chdir(root)
    try:
        again = derive_experiment("again", name)
        longer = derive_experiment("longer", name, changes=["algorithm.params.max_steps=60"])
        with pytest.raises(EvsysError, match="max_step"):
            derive_experiment("wrong", name, changes=["algoritm.params.max_steps=60"])
        with pytest.raises(EvsysError, match="there is no experiment 'nothing'"):
            derive_experiment("wrong", "nothing")
    finally:
        os.chdir(before)
    assert not list((root / "experiments").glob("*_wrong"))
    parent = load_yaml(next((root / "experiments").glob("*_first")) / "config.yaml")
    assert again.parent
    assert again.parent.startswith(name)
    copied = load_yaml(again.config)
    assert copied.all_runs() == parent.all_runs()
    assert copied.parent_experiment_id == again.parent
    config = load_yaml(longer.config)
    assert [run.algorithm.params["max_steps"] for run in config.all_runs()] == [30, 60]
    assert (config.metadata.model_extra or {})["open_question"] == longer.open_question != ""
    head = [line for line in longer.config.read_text("utf-8").splitlines() if line.startswith("#")]
    assert head[0].endswith("whose verdict was: supported.")
    assert head[-2:] == [
        "# Measured on the mock backend: this says nothing about a real model.",
        f"# Left open: {longer.open_question}",
    ]
    assert evsys("validate", str(longer.config), "--deep", cwd=root).returncode == 0
    script = longer.script.read_text("utf-8")
    assert 'Experiment.from_yaml(HERE / "config.yaml").run()' in script
