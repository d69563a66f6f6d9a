"""What is shown of rollouts: the beginning of each, a choice of them, and one of them whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..record.values import items, part, text
from .cursors import read_cursor, write_cursor
from .shapes import Rollout, RolloutDetail, Rollouts
from .source import BadQuery, Object, RolloutQuery

type Place = tuple[int, str, str, str, str, int]
"""Where a rollout stands in the list."""

LONGEST_PREVIEW = 300
OUTCOMES = ("passed", "failed", "error")
_BINS = 10


def preview_of(row: Mapping[str, Any]) -> str:
    """The beginning of what the model wrote."""
    return text_of(row)[:LONGEST_PREVIEW]


def text_of(row: Mapping[str, Any]) -> str:
    """What the model wrote, or the last message where that is all there is."""
    for key in ("prediction", "text", "completion", "output"):
        if found := text(row.get(key)):
            return found
    messages = items(row.get("messages"))
    return text(part({"it": messages[-1]}, "it").get("content")) if messages else ""


def detail_of(rollout: Rollout, raw: Object, group: Sequence[str]) -> RolloutDetail:
    """One rollout, whole; `group` are the ids of its task's samples, in order."""
    at = group.index(rollout.id) if rollout.id in group else -1
    messages = [cast(Object, one) for one in items(raw.get("messages")) if isinstance(one, dict)]
    return RolloutDetail(
        rollout=rollout,
        messages=messages,
        text=text_of(raw),
        info=part(raw, "info"),
        error=text(raw.get("error")),
        raw=raw,
        previous=group[at - 1] if at > 0 else None,
        following=group[at + 1] if 0 <= at < len(group) - 1 else None,
    )


def check_outcome(query: RolloutQuery) -> None:
    """Refuse an outcome that no rollout has."""
    if query.outcome and query.outcome not in OUTCOMES:
        raise BadQuery(f"outcome is {query.outcome[:40]!r}. It can be {', '.join(OUTCOMES)}.")


@dataclass(frozen=True, slots=True)
class Selection:
    """The rollouts that meet a query, in the order of the list; made once for all pages of it."""

    wanted: Sequence[Rollout]
    places: Sequence[Place]
    about: Rollouts
    """The answer without rows."""


def select_rollouts(rollouts: Iterable[Rollout], query: RolloutQuery) -> Selection:
    """Those that meet a query; later steps first, then by task."""
    check_outcome(query)
    everything = list(rollouts)
    wanted = sorted((one for one in everything if _is_wanted(one, query)), key=_place)
    bins, edges = histogram([one.reward for one in wanted])
    about = Rollouts(
        items=[],
        next=None,
        total=len(wanted),
        arms=sorted({one.arm for one in everything}),
        sets=sorted({f"{one.split}/{one.name}" if one.name else one.split for one in everything}),
        steps=sorted({one.step for one in everything}),
        rewards=bins,
        reward_range=edges,
    )
    return Selection(wanted, [_place(one) for one in wanted], about)


def page_of(selection: Selection, query: RolloutQuery) -> Rollouts:
    """The rows after a cursor, or from an offset on."""
    begin = query.offset
    if query.cursor:
        step, arm, split, name, task, sample = read_cursor(query.cursor, int, str, str, str, str, int)
        begin = bisect_right(selection.places, (step, arm, split, name, task, sample))
    page = list(selection.wanted[begin : begin + query.limit])
    more = begin + len(page) < len(selection.wanted) and page
    return selection.about.model_copy(update={"items": page, "next": write_cursor(*_place(page[-1])) if more else None})


def histogram(rewards: Iterable[float | None]) -> tuple[list[int], list[float]]:
    """How many rewards are in each tenth between the lowest and the highest; 0 and 1 where all lie between them."""
    known = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *known]), max([1.0, *known])
    bins = [0] * _BINS
    for reward in known:
        bins[min(int((reward - low) / (high - low) * _BINS), _BINS - 1)] += 1
    return bins, [low, high]


def _place(one: Rollout) -> Place:
    return -one.step, one.arm, one.split, one.name, one.task, one.sample


def _is_wanted(one: Rollout, query: RolloutQuery) -> bool:
    reward = one.reward
    return (
        (not query.arm or one.arm == query.arm)
        and (not query.split or one.split == query.split)
        and (not query.name or one.name == query.name)
        and (query.step is None or one.step == query.step)
        and (not query.task or one.task == query.task)
        and (query.min_reward is None or (reward is not None and reward >= query.min_reward))
        and (query.max_reward is None or (reward is not None and reward <= query.max_reward))
        and (not query.outcome or query.outcome == _outcome(reward))
        and (not query.search or query.search.casefold() in f"{one.task} {one.preview}".casefold())
    )


def _outcome(reward: float | None) -> str:
    return "error" if reward is None else "passed" if reward >= 1.0 else "failed"
