"""Which tasks two experiments answer differently: what one gained and what it lost, with both answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..record.runs import RunRecord
from ..record.values import Object
from .answers import Answer, by_task, read_answers
from .detail import Detail
from .pairing import SetScores, scores_of

_HALF = 0.5
"""A task is answered right by a run if more than half of its seeds and samples are right."""


@dataclass(frozen=True, slots=True)
class Flip:
    """One task that one experiment gets right and the other wrong."""

    task: str
    first: float
    second: float
    """The mean score of the best run of each, over its seeds."""
    prompt: str | None
    expected: str | None
    first_answer: str | None
    second_answer: str | None
    """Of the best seed of each."""


@dataclass(frozen=True, slots=True)
class Flips:
    """All of them for one metric."""

    metric: str
    n_tasks: int
    gained: list[Flip]
    lost: list[Flip]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        sides = {"gained": self.gained, "lost": self.lost}
        return {"metric": self.metric, "n_tasks": self.n_tasks} | {
            name: [asdict(one) for one in flips] for name, flips in sides.items()
        }


def find_flips(first: Detail, second: Detail) -> Flips | None:
    """The tasks that only the second gets right, and those that only the first does; None without common tasks."""
    left, right = scores_of(first), scores_of(second)
    shared = [metric for metric in (first.outcome.metric, second.outcome.metric) if metric in left and metric in right]
    if not shared:
        return None
    metric = shared[0]
    before, after = _means(left[metric]), _means(right[metric])
    common = [task for task in before if task in after]
    flipped = [task for task in common if (before[task] > _HALF) is not (after[task] > _HALF)]
    if not common:
        return None
    answers = [_answers(detail, metric) if flipped else {} for detail in (first, second)]
    flips = [_flip(task, before[task], after[task], answers[0].get(task), answers[1].get(task)) for task in flipped]
    gained = [one for one in flips if one.second > one.first]
    return Flips(metric, len(common), gained, [one for one in flips if one.second < one.first])


def _means(scores: SetScores) -> dict[str, float]:
    tasks = scores.by_task[0] if scores.by_task else {}
    return {
        task: sum(seed[task] for seed in scores.by_task) / len(scores.by_task)
        for task in tasks
        if all(task in seed for seed in scores.by_task)
    }


def _answers(detail: Detail, metric: str) -> dict[str, Answer]:
    """What the best seed answered at its latest scoring by a metric."""
    arm = detail.best_arm
    latest = None if arm is None else _latest(arm, metric)
    return by_task(read_answers(detail, arm, [latest])[0]) if arm is not None and latest is not None else {}


def _latest(arm: RunRecord, metric: str) -> Object | None:
    taken = [(step, line) for name, step, line, _ in arm.scores if name == metric]
    return max(taken, key=lambda one: one[0])[1] if taken else None


def _flip(task: str, before: float, after: float, first: Answer | None, second: Answer | None) -> Flip:
    known = first or second
    prompt, expected = (None, None) if known is None else (known.prompt, known.expected)
    return Flip(task, before, after, prompt, expected, first and first.got, second and second.got)
