"""`evsys contamination` and what `validate --deep` and `plan` say about tasks in training rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from tests.audit.project import make_project, read_lines

QUESTIONS = {
    "t1": ("Which of the seven harbours of the island is closed to ships during the winter months?", "SOUTH"),
    "t2": ("How many barrels of salted herring did the last convoy bring to the garrison of the old fort?", "NINETY"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one benchmark, in which the test is run."""
    tasks = [
        {
            "task_id": name,
            "instruction": question,
            "verifier": {"kind": "in_process", "fn_name": "contains", "expected": answer},
        }
        for name, (question, answer) in QUESTIONS.items()
    ]
    write_lines(tmp_path / "data/benchmark/harbours/tasks.jsonl", tasks)
    return tmp_path


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def config(project: Path, rows: list[dict[str, Any]], *, transforms: str = "[]") -> str:
    write_lines(project / "train.jsonl", rows)
    text = f"""
name: harbours
metadata: {{ benchmark: {{ path: data/benchmark/harbours }} }}
run:
  name: sft
  data: {{ path: train.jsonl, transforms: {transforms} }}
  model: {{ name: tiny }}
  algorithm: {{ kind: sft, params: {{ num_epochs: 1 }} }}
  backend: {{ kind: mock }}
"""
    (project / "config.yaml").write_text(text, encoding="utf-8")
    return "config.yaml"


@dataclass(frozen=True)
class Done:
    exit_code: int
    stdout: str
    output: str


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def run(*args: str) -> Done:
        code = main(list(args))
        said = capsys.readouterr()
        return Done(code, said.out, said.out + said.err)

    return run


CLEAN = [chat(f"What is the capital of country number {n} in the list of the almanac?", f"City {n}") for n in range(20)]


def test_clean_rows_are_called_clean(project: Path, invoke: Callable[..., Done]) -> None:
    done = invoke("contamination", config(project, CLEAN))
    assert done.exit_code == 0, done.output
    assert "no task occurs in the rows" in done.output


def test_a_copied_task_is_shown_with_its_row(project: Path, invoke: Callable[..., Done]) -> None:
    question, answer = QUESTIONS["t1"]
    rows = [*CLEAN, chat(f"Listen. {question.upper()} Think first.", f"It is the {answer.lower()} one.")]
    done = invoke("contamination", config(project, rows), "--json")
    assert done.exit_code == 2
    [source] = json.loads(done.stdout)["sources"]
    [finding] = source["findings"]
    assert (finding["row"], finding["task_id"], finding["match"]) == (20, "t1", "copy")


def test_rows_are_looked_at_after_the_transforms(project: Path, invoke: Callable[..., Done]) -> None:
    question, answer = QUESTIONS["t2"]
    first, _, second = question.partition(" salted ")
    templates = '{ user_template: "{first} salted {second}", assistant_template: "{answer}" }'
    rows = [{"first": first, "second": second, "answer": answer}]
    path = config(project, rows, transforms=f"[{{ kind: jsonl_to_chat, params: {templates} }}]")
    assert invoke("contamination", path).exit_code == 2


def test_the_check_and_the_plan_warn_before_anything_is_spent(project: Path, invoke: Callable[..., Done]) -> None:
    path = config(project, [*CLEAN, chat(*QUESTIONS["t1"])])
    checked = invoke("validate", path, "--deep", "--json")
    assert checked.exit_code == 0
    few, warning = json.loads(checked.stdout)["warnings"]
    assert "2 tasks are scored" in few
    assert "task 't1' of 'harbours' in row 21" in warning
    planned = invoke("plan", path)
    assert planned.exit_code == 0, planned.output
    assert "1 of 2 evaluation tasks also occur in the training data" in planned.output


def combo_config(project: Path) -> str:
    """A combo whose second phase trains on the questions of the benchmark."""
    write_lines(project / "clean.jsonl", [chat("Name the largest lake of the northern plain.", "MERE")] * 4)
    write_lines(project / "leak.jsonl", [chat(*one) for one in QUESTIONS.values()])
    text = """
name: harbours
metadata: { benchmark: { path: data/benchmark/harbours } }
run:
  name: combo
  data: { path: clean.jsonl }
  model: { name: tiny }
  algorithm:
    kind: combo
    params:
      phases:
        - { kind: sft, params: { max_steps: 1 } }
        - { kind: sft, params: { max_steps: 1 }, data: { path: leak.jsonl } }
  backend: { kind: mock }
"""
    (project / "config.yaml").write_text(text, encoding="utf-8")
    return "config.yaml"


@pytest.mark.parametrize("command", [["validate", "--deep"], ["plan"], ["contamination"]])
def test_the_rows_of_a_combo_phase_are_scanned_as_well(
    project: Path, invoke: Callable[..., Done], command: list[str]
) -> None:
    found = invoke(*command, combo_config(project)).output
    assert "leak.jsonl" in found
    assert "clean.jsonl" not in found or command == ["contamination"]


def test_data_of_the_experiment_whose_weights_a_run_starts_from_is_scanned(tmp_path: Path) -> None:
    """A checkpoint that was trained on the test file carries it along, over two generations."""
    make_project(tmp_path, tasks=6)
    leaked = [chat(one["instruction"], one["verifier"]["expected"]) for one in read_lines(tmp_path / "data/test.jsonl")]
    write_lines(tmp_path / "data/leaked.jsonl", leaked)
    benchmark = {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4}

    def run(name: str, data: str, start: str | None, metadata: dict[str, Any]) -> Path:
        model = {"name": "tiny"} | ({"init_from_checkpoint": start} if start else {})
        recipe = {"kind": "sft", "params": {"max_steps": 1, "batch_size": 2}}
        one = {"name": "sft", "data": {"path": data}, "model": model, "algorithm": recipe, "backend": {"kind": "mock"}}
        here = {"kind": "local", "params": {"arms_in": "threads"}}
        given = {"name": name, "output_dir": "outputs", "launcher": here, "metadata": metadata, "run": one}
        return Experiment(ExperimentConfig.model_validate(given)).run().path

    def last_state(path: Path) -> str:
        return str(next((path / "sft/checkpoints").glob("*final*/state")))

    grandparent = run("grandparent", "data/leaked.jsonl", None, {})
    parent = run("parent", "data/train.jsonl", last_state(grandparent), {})
    child = run("child", "data/train.jsonl", last_state(parent), {"hypothesis": "it helps", "benchmark": benchmark})
    [check] = [check for check in audit_experiment(child).flags if check.name == "contamination"]
    assert "6 of 6 evaluation tasks" in check.evidence[0]
    assert "grandparent/sft, from whose weights it starts" in check.evidence[0]
    clean = run("clean", "data/train.jsonl", None, {})
    other = run("other", "data/train.jsonl", last_state(clean), {"hypothesis": "it helps", "benchmark": benchmark})
    assert not audit_experiment(other).flags
