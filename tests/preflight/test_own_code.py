"""Agents, transforms and estimators of a project are tried before a run, or in its first step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evsys_sdk import RL as Recipe
from evsys_sdk import register_transform
from evsys_sdk.errors import TrainingError
from evsys_sdk.experiment.preflight.meaning import agents

from .meaning import ASK, ONE, RL, write_data
from .project import change, write
from .test_meaning import said_about

AGENT = """
from evsys_sdk import AgentResult, opening, text_of
notes = []

class Agent:
    async def run(self, task, policy, environment):
        messages = opening(task)
        FIRST
        for _ in range(TURNS):
            turn = await policy.act(messages)
            messages.append(turn.message)
            if not text_of(turn.message).startswith("find"):
                break
            TOLD
        return END
"""
RIGHT = {
    "FIRST": "pass",
    "TURNS": "3",
    "TOLD": 'messages.append({"role": "tool", "content": "nothing"})',
    "END": "messages",
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"END": "AgentResult(messages, reward=1.0)"}, "an attempt without an answer earns 1"),
        (
            {"FIRST": 'messages.append({"role": "user", "content": task.verifier.expected})'},
            "shows the expected answer",
        ),
        ({"FIRST": "notes.extend(messages); messages = list(notes)"}, "contains the task of another attempt"),
        ({"FIRST": "messages = messages[-1:]"}, "lacks the system prompt of the task"),
        ({"END": "messages[:2]"}, "the returned conversation lacks the policy's answers"),
        ({"END": "AgentResult(messages, reward=float(len(notes.append(0) or notes) % 2))"}, "earns different rewards"),
        ({"FIRST": "task.nothing"}, "the agent failed: AttributeError"),
        ({"TOLD": "pass"}, "the policy is asked again and shown nothing new"),
        ({"FIRST": "while True: await policy.act(messages)"}, None),
        ({"TURNS": "1"}, "the attempt ends with a message that the policy never sees"),
        ({"END": "[{**one, 'content': text_of(one).strip()} for one in messages]"}, "answers as they were sampled"),
        ({"FIRST": "messages[-1] = {'role': 'user', 'content': 'find it'}"}, "the same for different tasks"),
        ({"END": "AgentResult(messages, reward=float(text_of(turn.message) == 'billing'))"}, "'billing' earns 1 where"),
        (
            {
                'if not text_of(turn.message).startswith("find")': "if text_of(turn.message) == task.verifier.expected",
                "TOLD": "messages.append({'role': 'user', 'content': 'It is ' + task.verifier.expected})",
            },
            "after a wrong answer the next prompt shows the expected one",
        ),
    ],
)
def test_an_agent_is_tried_with_fixed_answers(
    changed: dict[str, str], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_SECONDS", 1.0)
    source = AGENT
    for name, code in {**RIGHT, **changed}.items():
        source = source.replace(name, code)
    module = f"agent_{random.randrange(1 << 40)}"
    write(tmp_path, f"{module}.py", source)
    write_data(tmp_path, {})
    asked: dict[str, str] = {}
    for at in ("run.data", "metadata.benchmark.0"):
        asked[f"{at}.transforms.0.params.user_template"] = f"{ASK} Try `find it`."
        asked[f"{at}.transforms.0.params.system_prompt"] = "You route tickets."
    said = said_about(change(RL, {**asked, "run.algorithm.params.agent_import_path": f"{module}:Agent"}))
    assert [one for one in said if says and says in one] if says else said == [], said


@register_transform("own_by_chance")
class ByChance:
    def __call__(self, rows: Any) -> Iterator[Any]:
        return (row for row in rows if random.random() < 0.9)


@register_transform("own_by_hash")
class ByHash:
    def __call__(self, rows: Any) -> Iterator[Any]:
        return (row for row in rows if hash(row["query"]) % 5)


@register_transform("own_with_a_column")
class WithAColumn:
    def __call__(self, rows: Any) -> Iterator[Any]:
        return (row for row in rows if row.get("brand"))


@register_transform("own_cut")
class Cut:
    def __call__(self, rows: Any) -> Iterator[Any]:
        return ({**row, "query": row["query"][:90]} for row in rows)


@register_transform("own_selection")
class Selection:
    def __call__(self, rows: Any) -> Iterator[Any]:
        return (row for at, row in enumerate(rows) if at % 5)


class WithoutSource(Selection):
    __module__ = "__main__"  # as in a session: `inspect` finds no source


register_transform("own_without_source")(WithoutSource)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("own_without_source", None),
        ("own_by_chance", "it gives other rows each time it is applied"),
        ("own_by_hash", "it decides by hash()"),
        ("own_with_a_column", "all of them without the column 'brand'"),
        ("own_cut", "prompts hold only the first 90 characters of the column 'query'"),
        ("own_selection", None),
    ],
)
def test_what_a_transform_of_the_project_does_to_rows_is_measured(kind: str, says: str | None, tmp_path: Path) -> None:
    def longer(rows: list[Any]) -> list[Any]:
        text = " I have been waiting for a while, and nobody has told me anything about it so far; order "
        return [
            {**row, "query": f"{row['query']}{text}{at}", **({"brand": "x"} if at % 4 else {})}
            for at, row in enumerate(rows)
        ]

    write_data(tmp_path, {"train": longer, "test": longer} if kind in ("own_cut", "own_with_a_column") else {})
    said = said_about(change(ONE, {"run.data.transforms": [{"kind": kind}, *ONE["run"]["data"]["transforms"]]}))
    found = [one for one in said if says and says in one]
    assert found if says else said == [], said


def test_advantages_against_the_rewards_end_the_run() -> None:
    class Turned(Recipe):
        name = "turned"

        def compute_advantages(self, groups: Any) -> Any:
            return [[-self.reward_of(one) for one in group] for group in groups]

    recipe, groups = Turned(), [[SimpleNamespace(reward=float(at == 1), status="ok") for at in range(4)]]
    with pytest.raises(TrainingError, match="higher rewards lower advantages"):
        recipe._advantages(groups)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
