"""Every mistake a person or an agent may make in a config: what they are told about it, and where.

Each file in `broken/` is named for its mistake and says at its top what must be reported, in order:

    # expect: <dotted path, or -> | line <number> | <part of the remedy>
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk import ConfigError, validate_yaml
from evsys_sdk.cli.main import main
from evsys_sdk.config.load import load_document
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import Problem
from evsys_sdk.registry import registry

CORPUS = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
EXPECT = re.compile(r"^# expect: (\S+) \| line (\d+) \| (\S.*)$", re.MULTILINE)


class Expected(NamedTuple):
    path: str
    line: int
    remedy: str


def expected_in(file: Path) -> list[Expected]:
    found = EXPECT.findall(file.read_text("utf-8"))
    return [Expected("" if path == "-" else path, int(line), remedy) for path, line, remedy in found]


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


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_message_is_sentences_for_people(file: Path) -> None:
    for problem in problems_of(file):
        text = str(problem)
        assert "\n" not in text
        assert re.search(r"[.?!\"]$", text), text
        assert not re.search(r"pydantic|Traceback|type=|Input should|validation error|\.\.|\. \.|  ", text), text
        assert len(text) < 1_000, text


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
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


WHOLE = """\
version: 1
name: whole
description: all there is
output_dir: out
data_store: { kind: local, params: { root: . } }
log_store: { kind: multiplex, params: { children: [{ kind: jsonl }] } }
callbacks: [{ kind: early_stopping, params: { metric: loss } }]
n_repeats: 2
base_seed: 1
budget: null
metadata:
  hypothesis: { claim: it helps }
  success_metric: { name: pass@1 }
  tags: [a]
  benchmark: [{ name: b, split: val, run_every: 5 }]
"""
A_RUN = """\
  name: r
  data: { source_kind: in_memory, rows: [{ q: a }], transforms: [{ kind: dedupe, params: { key: [q] } }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { num_epochs: 1 } }
  backend: { kind: mock, params: {} }
  eval: { metrics: [{ kind: exact_match }], eval_data: { path: v.jsonl, transforms: [{ kind: identity }] } }
  seed: 3
"""
MATRIX = """\
matrix:
  axes: { algorithm.params.num_epochs: [1, 2], seed: [1] }
  name_template: "{base}{seed}{algorithm.params.num_epochs}"
  max_arms: 9
"""
CONTINUAL = """\
run:
  name: r
  model: { name: tiny }
  algorithm: { kind: sft }
  backend: { kind: mock }
  continual: { stages: [{ name: a, data: { path: a }, params: { num_epochs: 1 } }, { name: b, data: { path: b } }] }
"""
STARTS = [f"{WHOLE}run:\n{A_RUN}", f"{WHOLE}{MATRIX}base_run:\n{A_RUN}", f"{WHOLE}{CONTINUAL}"]
WRONG = st.sampled_from([None, True, 0, -1, 2.5, "", "x", "../y", [], [None], ["x"], [[]], {}, {"x": 1}, {"kind": "x"}])


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into plain data."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def damage(data: Any, draw: st.DrawFn) -> None:
    """Replace, remove, rename or repeat one value somewhere in `data`."""
    path = draw(st.sampled_from([place for place in places(data) if place]))
    parent = data
    for step in path[:-1]:
        parent = parent[step]
    action = draw(
        st.sampled_from(["replace", "remove", "rename"] if isinstance(parent, dict) else ["replace", "repeat"])
    )
    if action == "replace":
        parent[path[-1]] = copy.deepcopy(draw(WRONG))
    elif action == "repeat":
        parent.append(copy.deepcopy(parent[path[-1]]))
    else:
        value = parent.pop(path[-1])
        if action == "rename":
            parent[f"{path[-1]}x"] = value


@given(st.data())
def test_a_damaged_config_is_valid_or_refused_in_words(draws: st.DataObject) -> None:
    document = read_yaml(draws.draw(st.sampled_from(STARTS)))
    for _ in range(draws.draw(st.integers(1, 3))):
        damage(document.data, draws.draw)
    text = write_yaml(document.data)
    try:
        config = load_document(read_yaml(text, file="c.yaml"), deep=True)
    except ConfigError as error:
        lines = [problem.line for problem in error.problems]
        assert lines == sorted(lines)  # pyright: ignore[reportArgumentType]
        for problem in error.problems:
            assert problem.file == "c.yaml"
            assert problem.message
            assert problem.hint, problem
    else:
        assert config.all_runs()


@pytest.mark.parametrize("text", STARTS, ids=["run", "matrix", "continual"])
def test_the_configs_that_are_damaged_above_are_valid(text: str) -> None:
    assert load_document(read_yaml(text), deep=True).all_runs()
