"""Scores and answers worked out again: a metric from its rewards, a reward from the answer it was given for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...data.chat import text_of
from ...data.types import HarborTask, InProcessVerifier
from ...errors import EvsysError
from ...eval.metric import build_metric
from ...eval.samples import TaskSamples
from ...eval.verifier import VerifierInput, build_verifier
from ...record.reader import ExperimentRecord
from ...record.values import subfolders, text
from ...registry import list_verifiers
from ...training.blocking import run_blocking

_RECHECKED = 24
"""Answers of each scoring that are judged again."""
_NEVER_AGAIN = frozenset({"llm_judge", "e2b", "harbor_tests", "python_tests"})
"""Verifiers that cost money or a sandbox."""


def compute_metric(name: str, samples: list[TaskSamples]) -> float | None:
    """A metric of these samples; None where it needs something else."""
    try:
        metric = build_metric(name)
        if metric.inputs != frozenset({"task_rewards"}):
            return None
        kept = [task for task in samples if not any(one.failed for one in task.samples)]
        return metric(kept).value if len(kept) == len(samples) else None
    except EvsysError:
        return None


def choose_answers(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few answers, spread over all of them: what changes on the way shows between the first and the last."""
    judged = [one for one in answers if one.get("reward") is not None and not one.get("messages")]
    step = max(1, len(judged) // _RECHECKED)
    return judged[::step]


def judge_again(task: HarborTask, answer: Mapping[str, Any]) -> float | None:
    """What an answer earns now; None where its verifier is not run for an audit."""
    what = task.verifier
    if not isinstance(what, InProcessVerifier) or what.fn_name in _NEVER_AGAIN or what.fn_name not in list_verifiers():
        return None
    given = VerifierInput(prompt=text_of(task.instruction), completion=str(answer.get("text") or ""), task=task)
    try:
        return run_blocking(lambda: _reward(what, given))
    except EvsysError:
        return None


async def _reward(what: InProcessVerifier, given: VerifierInput) -> float:
    return (await build_verifier(what)(given)).reward


# What the experiments beside one say against it: that it is a copy, or that its tasks are not what they were.


def find_copies(record: ExperimentRecord) -> list[str]:
    """Other experiments that have events of this one, which belong to it alone."""
    mine = {event.id for event in record.events if event.id}
    return [
        f"{other.folder.name} has the same events, so that one of the two is a copy"
        for other in _neighbours(record)
        if other.files.journal.is_file() and mine & {event.id for event in other.events}
    ]


def find_changed_tasks(record: ExperimentRecord) -> list[str]:
    """Sets of tasks that had other content when an earlier experiment was scored on the same name and version."""
    mine, began = _task_ids(record), record.began or 0.0
    if not mine:
        return []
    found: dict[str, str] = {}
    for other in _neighbours(record):
        theirs = _task_ids(other) if (other.began or 0.0) < began else {}
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                found[name] = (
                    f"the tasks of '{name}' are {mine[name]} here and were {theirs[name]} in {other.folder.name}: they "
                    "were changed in place. Restore them, or give the changed ones a name of their own"
                )
    return [found[name] for name in sorted(found)]


def _neighbours(record: ExperimentRecord) -> Iterator[ExperimentRecord]:
    here = record.folder.resolve()
    for name in subfolders(here.parent):
        if name != here.name:
            yield ExperimentRecord(here.parent / name)


def _task_ids(record: ExperimentRecord) -> dict[str, str]:
    """Name, version and split of each set that its first arm was scored on -> the id, which ends in its content."""
    ids = [text(one.get("id")) for run in record.runs[:1] for one in run.benchmarks]
    return {one.rpartition("-")[0]: one for one in ids if "-" in one}
