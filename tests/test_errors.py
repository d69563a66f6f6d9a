"""Errors carry place, value and remedy, and keep them on their way to another process or into JSON."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import errors
from evsys_sdk.errors import (
    MISSING,
    ConfigError,
    EvsysError,
    MissingExtraError,
    Problem,
    blame_user_code,
    closest,
    install_hint,
    show,
)

PROBLEMS = [
    Problem("should be text", path="run.name", value=None, hint="Give it a value.", file="c.yaml", line=3, column=5),
    Problem("the experiment has no runs", hint="Add one."),
]


def every_error() -> list[type[EvsysError]]:
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, EvsysError)]
    return sorted(classes, key=lambda error: error.__name__)


EXAMPLES: list[EvsysError] = [
    EvsysError(),
    ConfigError(PROBLEMS[0]),
    ConfigError(PROBLEMS),
    MissingExtraError("backend 'tinker'", "tinker"),
    *(error("what went wrong") for error in every_error() if error is not MissingExtraError),
]


def test_the_module_names_every_error_and_the_builtin_it_is() -> None:
    for error in every_error():
        assert error.__name__ in str(errors.__doc__)
        if error is not EvsysError:
            assert f"({error.__mro__[2].__name__})" in str(errors.__doc__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(error: EvsysError, protocol: int) -> None:
    parsed = pickle.loads(pickle.dumps(error, protocol))
    assert type(parsed) is type(error)
    assert str(parsed) == str(error)
    assert parsed.args == error.args
    assert parsed.to_dict() == error.to_dict()
    assert vars(parsed) == vars(error)
    assert copy.copy(parsed).to_dict() == error.to_dict()


def test_the_absence_of_a_value_survives_pickling() -> None:
    parsed = pickle.loads(pickle.dumps(ConfigError(PROBLEMS)))
    assert [problem.value for problem in parsed.problems] == [None, MISSING]
    assert "got" not in str(parsed.problems[1])
    assert copy.deepcopy(MISSING) is MISSING


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_can_be_raised_and_caught_as_the_builtin_it_is(error: EvsysError) -> None:
    builtins = [base for base in type(error).__mro__ if base.__module__ == "builtins" and base is not object]
    assert Exception in builtins
    with pytest.raises(builtins[0]) as caught:
        raise error
    assert caught.value is error
    assert error.exit_code == 1
    assert "'" not in str(error)[:1], "a KeyError would quote its message"


def test_a_problem_is_one_sentence_with_place_value_and_remedy() -> None:
    assert str(PROBLEMS[0]) == "c.yaml:3:5: run.name: should be text (got None). Give it a value."
    assert str(PROBLEMS[1]) == "the experiment has no runs. Add one."
    assert str(Problem("wrong.", value=[1])) == "wrong (got [1])."
    assert str(ConfigError(PROBLEMS)) == f"{PROBLEMS[0]}\n{PROBLEMS[1]}"


def test_a_place_is_filled_in_but_never_overwritten() -> None:
    assert Problem("x").located(file="f", line=1, column=2) == Problem("x", file="f", line=1, column=2)
    assert PROBLEMS[0].located(file="other", line=9) == PROBLEMS[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (3, 3),
        (2.5, 2.5),
        (True, True),
        (None, None),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ([1, 2], "[1, 2]"),
        (object, "<class 'object'>"),
    ],
)
def test_a_problem_is_strict_json(value: Any, expected: Any) -> None:
    text = json.dumps(Problem("x", value=value).to_dict(), allow_nan=False)
    assert json.loads(text)["value"] == expected


def test_a_problem_without_value_has_none_in_json() -> None:
    assert PROBLEMS[1].to_dict() == {
        "message": "the experiment has no runs",
        "path": "",
        "hint": "Add one.",
        "file": None,
        "line": None,
        "column": None,
    }
    assert ConfigError(PROBLEMS).to_dict()["problems"] == [problem.to_dict() for problem in PROBLEMS]


def test_a_missing_extra_says_how_to_install_it() -> None:
    error = MissingExtraError("backend 'tinker'", "tinker")
    assert str(error) == "backend 'tinker' needs the extra 'tinker'. Install it with: pip install 'evsys-sdk[tinker]'"
    assert install_hint("x") in str(MissingExtraError("y", "x"))


def test_a_long_value_is_shown_in_part() -> None:
    assert show("short") == "'short'"
    assert show("x" * 500).endswith("… (502 characters)")
    assert len(show(list(range(10_000)))) < 200


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sftt", "sft"), ("SFT", "sft"), ("dop", "dpo"), ("Jsonl_To_Chat", "jsonl_to_chat"), ("zebra", None), ("", None)],
)
def test_the_closest_name_is_a_plausible_typo_or_nothing(name: str, expected: str | None) -> None:
    assert closest(name, ["sft", "dpo", "jsonl_to_chat"]) == expected
    assert closest(name, []) is None


def test_what_is_shown_holds_no_secret() -> None:
    whole = Problem("takes no params", "run.backend.params", {"api_key": "sk-verysecret", "rank": 3})
    assert "sk-verysecret" not in str(whole)
    assert "'rank': 3" in str(whole)
    single = Problem("is not a number", "run.backend.params.password", "hunter2-hunter2")
    assert "hunter2" not in str(single)
    assert "hunter2" not in str(single.to_dict())


@pytest.mark.parametrize(
    ("body", "expression"),
    [
        ('value = row["answer"] + 1', 'row["answer"]'),
        ('ü = "ä"; value = row["answer"] + 1', 'row["answer"]'),
        ('value = sum(\n        [1, row["answer"]],\n    )', 'row["answer"]'),
    ],
)
def test_an_error_in_user_code_is_blamed_on_its_expression(body: str, expression: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def read(row):\n    {body}\n", "utf-8")
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    with pytest.raises(KeyError) as caught:
        mine.read({})
    place, _, text = blame_user_code(caught.value).partition(": ")
    assert re.search(r"mine\.py:[23]$", place)
    assert text == f"`{expression}`"


def test_a_raise_needs_no_quotation_and_our_own_code_is_never_blamed() -> None:
    with pytest.raises(ValueError, match="no") as caught:
        raise ValueError("no")
    assert re.search(r"test_errors\.py:\d+$", blame_user_code(caught.value))
    assert blame_user_code(ValueError("never raised")) == ""
