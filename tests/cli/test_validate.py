"""`evsys validate`: a config is checked from anywhere, with the project's own extensions, for people and programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main

GOOD = """\
name: hello
run:
  name: r0
  data: { path: train.jsonl, transforms: [{ kind: identity }] }
  model: { name: tiny }
  algorithm: { kind: sft }
  backend: { kind: mock }
"""
OWN = """\
from pydantic import BaseModel
from evsys_sdk import register_backend, register_transform

@register_transform("own")
class Own:
    class Config(BaseModel, extra="forbid"):
        factor: int = 1

    def __init__(self, **params):
        self.config = self.Config(**params)

    def __call__(self, rows):
        return rows

@register_backend("own")
class OwnBackend: ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project to stand in, with a config that uses its own transform and backend."""
    own = GOOD.replace("kind: identity", "kind: own, params: { factor: 2 }").replace("kind: mock", "kind: own")
    (tmp_path / "config.yaml").write_text(own, encoding="utf-8")
    row = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
    (tmp_path / "train.jsonl").write_text(row, encoding="utf-8")
    (tmp_path / "own_extensions.py").write_text(OWN, encoding="utf-8")
    return tmp_path


def test_a_good_config_is_ok_and_its_runs_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "config.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "config.yaml: OK. Experiment 'hello' has 1 run: r0\n"
    assert err == "Kinds, params and data were not checked; add --deep for that.\n"


def test_many_runs_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = "name: many\nmatrix:\n  axes:\n    seed: [1, 2, 3, 4, 5, 6, 7]\nbase_run:\n" + GOOD.partition("r0\n")[2]
    (project / "many.yaml").write_text(matrix, encoding="utf-8")
    assert main(["validate", "many.yaml"]) == 0
    assert capsys.readouterr().out == (
        "many.yaml: OK. Experiment 'many' has 7 runs: "
        "many__seed1, many__seed2, many__seed3, many__seed4, many__seed5, …\n"
    )


def test_json_says_the_same(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "config.yaml", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"ok": True, "path": "config.yaml", "name": "hello", "deep": False, "runs": ["r0"]}
    assert err == ""


@pytest.mark.parametrize("reference", ["own_extensions", "own_extensions.py"])
def test_deep_knows_the_extensions_that_are_imported(
    project: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--deep", "config.yaml", "--import", reference]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("config.yaml: OK.")
    assert err == ""


def test_deep_does_not_know_them_otherwise(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--deep", "config.yaml"]) == 1
    err = capsys.readouterr().err
    assert "config.yaml:4:45: run.data.transforms[0].kind: transform 'own' is not registered." in err
    assert '@register_transform("own")' in err


def test_their_params_are_checked_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "config.yaml"
    path.write_text(path.read_text("utf-8").replace("factor: 2", "faktor: 2"), encoding="utf-8")
    assert main(["validate", "--deep", "--import", "own_extensions", "config.yaml"]) == 1
    assert capsys.readouterr().err == (
        "config.yaml:4:66: run.data.transforms[0].params.faktor: unknown key 'faktor'. Did you mean 'factor'?\n"
    )


def test_the_project_settings_import_them(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text('[tool.evsys]\nimports = ["own_extensions"]\n', encoding="utf-8")
    assert main(["validate", "--deep", "config.yaml"]) == 0
    assert capsys.readouterr().out.startswith("config.yaml: OK.")


def test_from_a_folder_below_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text('[tool.evsys]\nimports = ["own_extensions"]\n', encoding="utf-8")
    below = project / "experiments" / "first"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert main(["validate", "--deep", "../../config.yaml"]) == 0
    assert capsys.readouterr().out.startswith("../../config.yaml: OK.")


def test_from_somewhere_else_with_an_absolute_path(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    text = (project / "config.yaml").read_text("utf-8").replace("train.jsonl", str(project / "train.jsonl"))
    (project / "config.yaml").write_text(text, encoding="utf-8")
    assert main(["validate", str(project / "config.yaml")]) == 0
    own = str(project / "own_extensions.py")
    assert main(["validate", "--deep", str(project / "config.yaml"), "--import", own]) == 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module", "there is no module 'no_such_module'. Give a module that can be imported from"),
        ("missing.py", "there is no such file to import"),
        ("raising.py", "raising.py:1: importing 'raising.py' failed: RuntimeError: not today. Correct that module"),
    ],
)
def test_an_import_that_fails_is_a_sentence(
    project: Path, reference: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "raising.py").write_text("raise RuntimeError('not today')\n", encoding="utf-8")
    assert main(["validate", "config.yaml", "--import", reference, "--json"]) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert json.loads(out)["problems"][0]["hint"]


def test_a_missing_file_is_a_sentence_with_the_nearest_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "confg.yaml"]) == 1
    assert capsys.readouterr() == ("", "confg.yaml: there is no such file. Did you mean 'config.yaml'?\n")


def test_names_in_any_script_are_shown_as_they_are(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "config.yaml").write_text(GOOD.replace("hello", "größe-模型"), encoding="utf-8")
    assert main(["validate", "config.yaml", "--json"]) == 0
    assert '"größe-模型"' in capsys.readouterr().out


VERIFIER = '{"kind": "in_process", "fn_name": "%s", "expected": "a"}'
TASK = f'{{"task_id": "t1", "instruction": "say a", "verifier": {VERIFIER}}}\n'
BENCHMARK = "metadata:\n  benchmark:\n    - { name: b, path: tasks.jsonl, metrics: [pass@1] }\n"


def test_deep_reports_wrong_kinds_and_wrong_benchmarks_together(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = GOOD.replace("run:\n", f"{BENCHMARK}run:\n", 1).replace("kind: sft", "kind: sftt")
    wrong = wrong.replace("pass@1", "pas@1")
    (project / "both.yaml").write_text(wrong, encoding="utf-8")
    (project / "tasks.jsonl").write_text(TASK % "exact_match", encoding="utf-8")
    assert main(["validate", "--deep", "both.yaml", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [(problem["path"], problem["line"]) for problem in problems] == [
        ("metadata.benchmark[0].metrics[0]", 4),
        ("run.algorithm.kind", 9),
    ]


@pytest.mark.parametrize(
    ("change", "task", "path", "message"),
    [
        ("", TASK % "exact_mach", "metadata.benchmark[0]", "task 't1': verifier 'exact_mach' is not registered"),
        ("metrics: [pass@4]", TASK % "exact_match", "metadata.benchmark[0].metrics[0]", "needs at least 4 attempts"),
        ("breakdown_keys: [level]", TASK % "exact_match", "metadata.benchmark[0]", "no task has the metadata key"),
        ("engine: habor", TASK % "exact_match", "metadata.benchmark[0].engine", "Did you mean 'harbor'?"),
        ("", None, "metadata.benchmark[0]", "tasks.jsonl"),
    ],
)
def test_deep_finds_what_a_benchmark_would_fail_on(
    change: str, task: str | None, path: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = BENCHMARK.replace("metrics: [pass@1]", change or "metrics: [pass@1]")
    (project / "wrong.yaml").write_text(GOOD.replace("run:\n", f"{block}run:\n", 1), encoding="utf-8")
    if task is not None:
        (project / "tasks.jsonl").write_text(task, encoding="utf-8")
    assert main(["validate", "--deep", "wrong.yaml"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("wrong.yaml:4:")
    assert f": {path}: " in err
    assert message in err
