"""Scores and answers worked out again: a metric from its rewards, a reward from the answer it was given for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.chat import text_of
from ..data.types import HarborTask, InProcessVerifier
from ..errors import EvsysError
from ..eval.metric import build_metric
from ..eval.samples import TaskSamples
from ..eval.verifier import VerifierInput, build_verifier
from ..registry import list_verifiers
from ..training.blocking import run_blocking

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
