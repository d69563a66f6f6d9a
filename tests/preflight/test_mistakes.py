"""What a run would stumble over later is refused before anything is spent, at its place, with the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError, Problem
from evsys_sdk.experiment.preflight import check_file

from . import own
from .mistakes import MISTAKES, Mistake
from .project import MATRIX, Config, change, write_project
from .valid import VALID

assert own  # registers the project's extensions


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def problems_of(config: Config) -> list[Problem]:
    """What is said, apart from extras that may not be installed where the tests run."""
    Path("config.yaml").write_text(write_yaml(config), encoding="utf-8")
    try:
        check_file("config.yaml")
    except ConfigError as error:
        return [problem for problem in error.problems if "needs the extra 'local'" not in problem.message]
    return []


def test_there_are_many_of_both_and_each_is_told_apart() -> None:
    assert len(MISTAKES) >= 120
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert len(VALID) >= 60


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_one_problem_at_its_place_with_its_remedy(mistake: Mistake) -> None:
    [problem] = problems_of(mistake.config)
    assert problem.path == mistake.at
    assert mistake.says in str(problem)
    assert mistake.remedy in problem.hint
    assert problem.hint, "every problem has a remedy"
    assert problem.file == "config.yaml"
    assert problem.line, "every problem has a line"
    assert not re.search(r"Traceback|pydantic|\?\.|[^.]\.\. |  |\n", str(problem)), str(problem)


@pytest.mark.parametrize("config", VALID.values(), ids=VALID)
def test_what_is_right_passes(config: Config) -> None:
    assert problems_of(config) == []


def test_nothing_is_written_before_everything_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path for path in tmp_path.rglob("*") if path.name != "config.yaml"}
    for verb in ("validate --deep", "plan", "run"):
        Path("config.yaml").write_text(write_yaml(MISTAKES[0].config), encoding="utf-8")
        assert main([*verb.split(), "config.yaml", "--json"]) == 1
        [problem] = json.loads(capsys.readouterr().out)["problems"]
        assert problem["path"] == MISTAKES[0].at, verb
    assert {path for path in tmp_path.rglob("*") if path.name != "config.yaml"} == before


def test_several_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    config = change(
        VALID["claim"],
        {
            "runs.0.data.path": "data/trian.jsonl",
            "runs.1.model.renderer_name": "qwen_3",
            "runs.1.algorithm.kind": "sftt",
            "metadata.hypothesis.baseline": "smal",
            "metadata.benchmark.0.path": "data/task.jsonl",
        },
    )
    found = problems_of(config)
    assert {problem.path for problem in found} == {
        "runs[0].data.path",
        "runs[1].algorithm.kind",
        "metadata.hypothesis.baseline",
        "metadata.benchmark[0]",
    }
    assert [problem.line for problem in found] == sorted(problem.line or 0 for problem in found)


def test_a_wrong_path_in_a_thousand_arms_is_one_problem() -> None:
    axes = {"seed": list(range(100)), "algorithm.params.learning_rate": [at / 1000 for at in range(1, 11)]}
    config = change(MATRIX, {"base_run.data.path": "data/trian.jsonl", "matrix.axes": axes})
    assert [problem.path for problem in problems_of(config)] == ["base_run.data.path"]


def test_a_callback_with_one_hook_and_no_base_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def hear(self: own.Bare, step: int, metrics: Mapping[str, float]) -> None:
        heard.append(step)

    monkeypatch.setattr(own.Bare, "on_step", hear)
    Path("config.yaml").write_text(write_yaml(VALID["callback_without_base_class"]), encoding="utf-8")
    text = Path("config.yaml").read_text("utf-8") + "launcher: {kind: local, params: {arms_in: threads}}\n"
    Path("config.yaml").write_text(text, encoding="utf-8")
    assert main(["run", "config.yaml", "--quiet"]) == 0
    assert heard == [1, 2]
