"""Every mistake a person or an agent may make in a config: its error message and place.

Each file in `broken/` is named for its mistake and says at its top what must be reported, in order:

    # expect: <dotted path, or -> | line <number> | <part of the remedy>
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evsys_sdk import ConfigError, validate_yaml
from evsys_sdk.cli.main import main
from evsys_sdk.errors import Problem
from evsys_sdk.registry import registry

CORPUS = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
EXPECT = re.compile(r"^# expect: (\S+) \| line (\d+) \| (\S.*)$", re.MULTILINE)


class Expected(NamedTuple):
    path: str
    line: int
    remedy: str


def expected_in(file: Path) -> list[Expected]:
    comments = EXPECT.findall(file.read_text("utf-8"))
    return [Expected("" if path == "-" else path, int(line), remedy) for path, line, remedy in comments]


def problems_of(file: Path) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        validate_yaml(file, deep=True)
    return caught.value.problems


def test_the_corpus_is_large_and_every_file_says_what_it_expects() -> None:
    assert len(CORPUS) >= 150
    assert [file.name for file in CORPUS if not expected_in(file)] == []


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_mistake_is_reported_at_its_place_with_the_remedy(file: Path) -> None:
    problems = problems_of(file)
    assert [(p.path, p.line) for p in problems] == [(e.path, e.line) for e in expected_in(file)]
    for problem, expected in zip(problems, expected_in(file), strict=True):
        assert problem.file == str(file)
        assert expected.remedy in problem.hint
        assert str(problem).startswith(f"{file}:{expected.line}:")
        assert problem.path in str(problem)
        assert_is_sentences(str(problem))


def assert_is_sentences(text: str) -> None:
    assert "\n" not in text
    assert re.search(r"[.?!\"]$", text), text
    assert not re.search(r"pydantic|Traceback|type=|Input should|validation error|\.\.|\. \.|  ", text), text
    assert len(text) < 1_000, text


@pytest.mark.parametrize("file", CORPUS[::12], ids=lambda file: file.stem)
def test_the_command_line_says_the_same_and_exits_with_1(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(shutil.copy(file, tmp_path))  # outside of the repository, which is a project with its own settings
    problems = problems_of(file)
    assert main(["validate", "--deep", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert told_apart_from_data(err) == [str(problem) for problem in problems]

    assert main(["validate", "--deep", "--json", str(file)]) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out, parse_constant=pytest.fail)
    assert answer["error"] == "ConfigError"
    found = [problem for problem in answer["problems"] if MISSING_DATA not in problem["message"]]
    assert found == [problem.to_dict() for problem in problems]
    assert told_apart_from_data(err) == [str(problem) for problem in problems]


MISSING_DATA = "there is no such file (path"


def told_apart_from_data(said: str) -> list[str]:
    """What is said about the config itself; the rows that these files name are not here either."""
    return [line for line in said.splitlines() if MISSING_DATA not in line]


def test_without_deep_the_kinds_are_not_looked_up() -> None:
    deep_only = [file for file in CORPUS if file.stem.startswith(("unknown_", "param_"))]
    assert len(deep_only) >= 15
    for file in deep_only:
        assert validate_yaml(file).name == "broken"


VALID = """\
name: fine
run:
  name: r0
  data: { path: train.jsonl }
  model: { name: tiny }
  algorithm: { kind: sft }
  backend: { kind: mock }
"""


def unwritable_mistakes() -> dict[str, tuple[Callable[[Path], Any], str]]:
    """Files that cannot lie in a repository, or cannot say in a comment what is wrong with them."""

    def huge(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(100_000_000)

    return {
        "empty": (lambda path: path.write_bytes(b""), "the YAML text is empty"),
        "only comments": (lambda path: path.write_text("# nothing\n\n", encoding="utf-8"), "the YAML text is empty"),
        "null": (lambda path: path.write_text("~\n", encoding="utf-8"), "must hold a mapping"),
        "not UTF-8": (lambda path: path.write_bytes(b"name: caf\xe9\n"), ":1:10: this text is not UTF-8"),
        "UTF-16": (lambda path: path.write_bytes(VALID.encode("utf-16")), "Save the file as UTF-8"),
        "binary": (lambda path: path.write_bytes(b"\x7fELF\x02\x01\x00\x00"), ":1:1: character U+007F"),
        "100 MB": (huge, "100.0 MB"),
        "a folder": (lambda path: path.mkdir(), "this is a directory"),
        "nothing there": (lambda path: path.with_name("confg.yaml").write_text(VALID, encoding="utf-8"), "confg.yaml"),
    }


@pytest.mark.parametrize("mistake", unwritable_mistakes())
def test_a_file_that_is_no_config_at_all_is_refused(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = unwritable_mistakes()[mistake]
    path = tmp_path / "config.yaml"
    make(path)
    with pytest.raises(ConfigError) as caught:
        validate_yaml(path, deep=True)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    assert caught.value.problems[0].hint
    assert main(["validate", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["problems"] == [problem.to_dict() for problem in caught.value.problems]
    assert err == f"{caught.value}\n"


def test_a_mistake_that_all_cells_of_a_matrix_share_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    axes = "matrix:\n  axes:\n    seed: [1, 2, 3, 4, 5]\n    algorithm.params.num_epochs: [1, 2, 3, 4]\nbase_run:\n"
    run = VALID.partition("name: r0\n")[2].replace("kind: sft", "kind: sftt").replace("name: tiny", "nme: tiny")
    path.write_text(f"name: many\n{axes}{run}", encoding="utf-8")
    problems = problems_of(path)
    assert [problem.path for problem in problems] == ["base_run.model.nme", "base_run.algorithm.kind"]


def test_a_kind_that_needs_an_extra_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsys_sdk.builtins.EXTRA_MODULES", {"tensorboard": ("no_such_module_anywhere",)})
    path = tmp_path / "config.yaml"
    path.write_text(f"log_store: {{ kind: tensorboard }}\n{VALID}", encoding="utf-8")
    (problem,) = problems_of(path)
    assert (problem.path, problem.line) == ("log_store.kind", 1)
    assert problem.message == "log_store 'tensorboard' needs the extra 'tensorboard'"
    assert problem.hint == "Install it with: pip install 'evsys-sdk[tensorboard]'"


def test_a_default_that_is_not_there_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry("backend"), "_builtins", {})
    path = tmp_path / "config.yaml"
    path.write_text(VALID.replace("  backend: { kind: mock }\n", ""), encoding="utf-8")
    (problem,) = problems_of(path)
    assert (problem.path, problem.line) == ("run.backend.kind", 2)
    assert "backend 'tinker' is not registered" in problem.message
