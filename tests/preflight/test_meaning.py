"""Mistakes of meaning are reported before anything is spent, with their cause; honest configs hear nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import register_verifier
from evsys_sdk.config.yaml_write import write_yaml
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.contamination import find_contamination
from evsys_sdk.experiment.preflight import check_file
from evsys_sdk.experiment.preflight.meaning.context import example_of
from evsys_sdk.experiment.preflight.meaning.rows import gives_answer_away

from . import second
from .meaning import HONEST, MEANINGS, RL, Files, Meaning, write_data
from .project import Config, change


def said_about(config: Config) -> list[str]:
    """Everything that the check before a run says."""
    Path("config.yaml").write_text(write_yaml(config), encoding="utf-8")
    try:
        checked = check_file("config.yaml")
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return [*checked.warnings, *find_contamination(checked.config)[0]]


@pytest.mark.parametrize("mistake", [one for one in MEANINGS if one.before], ids=lambda one: one.name)
def test_a_mistake_of_meaning_is_named_with_its_place_and_remedy(mistake: Meaning, tmp_path: Path) -> None:
    write_data(tmp_path, mistake.files)
    said = said_about(mistake.config)
    assert any(mistake.says in one for one in said), said
    assert all(one.startswith("config.yaml:") or "evaluation tasks also occur" in one for one in said), said
    assert len(said) <= 4, said


@pytest.mark.parametrize(("config", "files"), HONEST.values(), ids=HONEST)
def test_an_honest_config_hears_nothing(config: Config, files: Files, tmp_path: Path) -> None:
    write_data(tmp_path, files)
    assert said_about(config) == []


@pytest.mark.parametrize("mistake", second.MISTAKES, ids=lambda one: one.name)
def test_a_mistake_of_the_second_set_is_reported_with_its_cause(mistake: second.Mistake, tmp_path: Path) -> None:
    second.write_data(tmp_path, mistake.files)
    said = said_about(mistake.config)
    assert any(re.search(mistake.cause, one) for one in said), said
    assert len(said) <= 4, said


@pytest.mark.parametrize(("config", "files"), second.HONEST.values(), ids=second.HONEST)
def test_an_honest_config_of_the_second_set_hears_nothing(
    config: Config, files: Mapping[str, Sequence[Config]], tmp_path: Path
) -> None:
    second.write_data(tmp_path, files)
    assert said_about(config) == []


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("1.0", "any answer scores on 3 of 3 tasks"),
        ("float(expected not in completion)", "earns less than a wrong answer"),
        ("100.0 * (expected == completion)", "rewards are far above 1"),
        ("completion[0].index(expected)", "3 tasks cannot be scored"),
        ("-1.0 - abs(len(expected) - len(completion))", "no answer that was tried earns more than 0"),
        ("float(completion.lower() == expected.upper())", "not even the expected answer"),
        ("(expected == completion) - 2.0 * len(completion.split())", "an empty answer earns as much as"),
        ("float(f'<answer>{expected}<' in completion)", "scores in a form that the prompt does not ask for"),
        ("float(expected in completion)", "an answer that lists 3 labels earns the reward"),
        ("float(not completion or expected == completion)", "an empty answer earns as much as"),
        ("float(completion[:1] == expected[:1])", "shares only a part with the expected"),
        ("(expected == completion) + __import__('random').random() / 2", "earns another reward each time"),
        ("float(completion in ('billing', 'shipping', 'login', 'returns'))", "the answer of another task scores"),
        ("None", "returned None as the reward"),
        ("float(expected == completion)", None),
        ("float(len(completion) < 200)", None),
        ("0.2 * len(completion.split()) - (expected not in completion)", None),
    ],
)
def test_a_reward_function_is_tried_on_a_few_tasks(reward: str, says: str | None, tmp_path: Path) -> None:
    name = f"tried_{len(reward)}_{reward[:1]}"

    @register_verifier(name)
    def own(completion: str, expected: str) -> float:  # pyright: ignore[reportUnusedFunction]
        return eval(reward, {}, {"completion": completion, "expected": expected})

    write_data(tmp_path, {})
    said = said_about(change(RL, {"run.data.transforms.1.params.fn_name": name}))
    assert [one for one in said if says and says in one] if says else said == [], said


@pytest.mark.parametrize(
    ("asked", "expected", "given_away"),
    [
        ("What is 6 * 7? (answer: 42)", 42, True),
        ("Name the tool.\nExpected = set_alarm", "set_alarm", True),
        ("Solve it. The correct answer is: **blue**", "blue", True),
        (f"Write a poem.\n{'roses are red ' * 8}", "roses are red " * 8, True),
        ("Colours:\n- red\n- green\nAnswer with one of them.", "green", False),
        ("Is 42 even? Answer yes or no.", "yes", False),
        ("The answer: 420 is wrong. Why?", "42", False),
        ("anything", None, False),
        ("anything", {"a": 1}, False),
    ],
)
def test_an_answer_is_given_away_where_it_is_announced_or_long(asked: str, expected: Any, given_away: bool) -> None:
    task = {"task_id": "t", "instruction": asked, "verifier": {"fn_name": "x", "expected": expected}}
    assert gives_answer_away(example_of(task, 0)) is given_away


def test_there_are_many_of_both() -> None:
    assert len({one.name for one in MEANINGS}) == len(MEANINGS) >= 100
    assert sum(one.before for one in MEANINGS) >= 80
    assert len(HONEST) >= 60
