"""Conformance tests of a task source; subclass them and name the paths of the splits.

class TestMySource(TaskSourceConformance):
    splits = {"train": "my_source:sums?size=20", "test": "my_source:sums?split=test&size=20"}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from ..data.rows import parse_rows
from ..data.task_source import TaskSource, build_task_source
from ..data.types import HarborTask, InProcessVerifier, TargetFormat
from ..eval.verifier import VerifierInput, build_verifier


class TaskSourceConformance:
    """Tests that rows are tasks with stable ids, that splits are disjoint, and that a row is enough to score."""

    splits: ClassVar[Mapping[str, str]]
    """Split -> path of its tasks."""

    @pytest.fixture
    def tasks(self) -> dict[str, list[HarborTask]]:
        return {split: _read_tasks(path) for split, path in self.splits.items()}

    def test_it_satisfies_the_protocol(self) -> None:
        for path in self.splits.values():
            assert isinstance(build_task_source(path), TaskSource)

    def test_the_same_path_gives_the_same_tasks(self, tasks: dict[str, list[HarborTask]]) -> None:
        assert {split: _read_tasks(path) for split, path in self.splits.items()} == tasks

    def test_every_task_has_its_own_id(self, tasks: dict[str, list[HarborTask]]) -> None:
        ids = [task.task_id for split_tasks in tasks.values() for task in split_tasks]
        assert ids
        assert len(set(ids)) == len(ids)

    def test_no_question_is_in_two_splits(self, tasks: dict[str, list[HarborTask]]) -> None:
        questions = [str(task.instruction) for split_tasks in tasks.values() for task in split_tasks]
        assert len(set(questions)) == len(questions)

    def test_an_expected_answer_earns_the_full_reward_and_an_empty_one_does_not(
        self, tasks: dict[str, list[HarborTask]]
    ) -> None:
        for task in (task for split_tasks in tasks.values() for task in split_tasks):
            assert isinstance(task.verifier, InProcessVerifier)
            if task.verifier.expected is not None:
                assert _score(task, str(task.verifier.expected)) == pytest.approx(1.0)
            assert _score(task, "") < 1.0


def _read_tasks(path: str) -> list[HarborTask]:
    """The tasks after a round trip through JSON, as a run reads them."""
    rows: list[Any] = [json.loads(json.dumps(row)) for row in build_task_source(path).make_rows()]
    return list(parse_rows(rows, TargetFormat.HARBOR_TASK))


def _score(task: HarborTask, completion: str) -> float:
    verifier = build_verifier(task.verifier)
    sample = VerifierInput(str(task.instruction), completion, task=task)
    return asyncio.run(_reward(verifier, sample))


async def _reward(verifier: Any, sample: VerifierInput) -> float:
    return (await verifier(sample)).reward
