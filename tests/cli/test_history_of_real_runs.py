"""Records that `evsys run` really writes, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config.yaml_write import write_yaml


def config(name: str, **changes: Any) -> dict[str, Any]:
    transforms = [
        {"kind": "jsonl_to_chat", "params": {"user_template": "{query}", "assistant_template": "{tool_slug}"}}
    ]
    run = {
        "name": "slow",
        "data": {"path": "examples/01_quickstart/data/train.jsonl", "transforms": transforms},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 4, "learning_rate": 0.0001}},
        "backend": {"kind": "mock"},
    }
    fast = {**run, "name": "fast", "algorithm": {"kind": "sft", "params": {"max_steps": 4, "learning_rate": 0.001}}}
    benchmark = {"name": "routing", "path": "examples/03_benchmark/data/val.jsonl", "split": "val", "n_tasks": 5}
    metadata = {
        "hypothesis": "A higher rate helps.",
        "success_metric": "pass@1",
        "tags": ["rates"],
        "benchmark": [{**benchmark, "run_every": 2, "max_tokens": 8}],
    }
    return {"name": name, "output_dir": "outputs", "metadata": metadata, "runs": [run, fast], **changes}


@pytest.fixture
def project(examples: Path) -> Path:
    return examples.parent


def run(name: str, capsys: pytest.CaptureFixture[str], **changes: Any) -> int:
    Path(f"{name}.yaml").write_text(write_yaml(config(name, **changes)), "utf-8")
    code = main(["run", f"{name}.yaml", "--quiet"])
    capsys.readouterr()
    return code


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_two_experiments_are_listed_shown_compared_and_digested(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("first", capsys) == 0
    assert run("second", capsys, n_repeats=2, parent_experiment_id="first") == 0
    listed = answer(capsys, "history", "--sort", "oldest")["experiments"]
    assert [(entry["name"], entry["status"], entry["n_arms"]) for entry in listed] == [
        ("first", "completed", 2),
        ("second", "completed", 4),
    ]
    assert listed[0]["varied"] == ["algorithm.params.learning_rate"]
    shown = answer(capsys, "show", "second")
    assert {arm["run"] for arm in shown["arms"]} == {"slow", "fast"}
    assert {arm["seed"] for arm in shown["arms"]} == {42, 43}
    assert {run["run"] for run in shown["runs"] if not run["is_baseline"]} == {"slow", "fast"}
    (parent,) = [run["run"] for run in shown["runs"] if run["is_baseline"]]  # what it continues from
    assert parent.endswith(f" of {listed[0]['id']}")
    assert shown["checkpoints"][-1]["final"] is True
    compared = answer(capsys, "compare", "first", "second")
    assert {one["path"] for one in compared["config"]} >= {"n_repeats"}
    assert [difference["metric"] for difference in compared["differences"]] == ["val/routing/pass@1"]
    assert {curve["metric"] for curve in compared["curves"]} == {"loss", "val/routing/pass@1"}
    digest = answer(capsys, "context")
    assert digest["spend"][0]["experiments"] == 2
    assert [(question["experiments"], question["runs"]) for question in digest["questions"]] == [(2, {"sft": 4})]


def test_the_command_that_show_gives_reproduces_the_experiment(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("first", capsys) == 0
    command = answer(capsys, "show", "first")["commands"]["reproduce"].split()
    assert command[:2] == ["evsys", "run"]
    assert main([*command[1:], "--quiet"]) == 0
    capsys.readouterr()
    listed = answer(capsys, "history", "--sort", "oldest")["experiments"]
    assert [Path(entry["path"]).name for entry in listed] == ["first", "first.2"]
    assert listed[0]["best_score"] == listed[1]["best_score"]
    assert answer(capsys, "show", "first")["path"].endswith("first.2")


def test_a_failed_arm_is_shown_with_its_reason(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = config("broken")
    (project / "nowhere").mkdir()
    (project / "nowhere" / "manifest.json").write_text('{"format": 1}', "utf-8")  # and no weights
    broken["runs"][1]["model"] = {"name": "tiny", "init_from_checkpoint": "nowhere"}
    assert run("broken", capsys, runs=broken["runs"]) == 2
    (first,) = answer(capsys, "history")["experiments"]
    assert (first["n_failures"], first["best_run"]) == (1, "slow") or first["verdict"]
    assert "nowhere" in answer(capsys, "show", "broken")["failures"][0]["reason"]
    assert "nowhere" in answer(capsys, "context")["failed"][0]["reason"]


def test_an_experiment_elsewhere_is_found_by_its_noted_root_or_a_given_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("far", capsys, output_dir="elsewhere") == 0
    assert [experiment["name"] for experiment in answer(capsys, "history", "--root", "elsewhere")["experiments"]] == [
        "far"
    ]
    assert [experiment["name"] for experiment in answer(capsys, "history")["experiments"]] == ["far"]
