"""What is shown of rollouts: the beginning of each, a choice of them, and one of them whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from ...record.values import items, part, text
from ..shapes.record import Rollout, RolloutDetail, Rollouts
from .source import BadQuery, Object, RolloutQuery, read_cursor, write_cursor

type Place = tuple[int, str, str, str, str, int]
"""Where a rollout stands in the list."""

LONGEST_PREVIEW = 300
OUTCOMES = ("passed", "failed", "error")
_BINS = 10


def preview_of(row: Mapping[str, Any]) -> str:
    """The beginning of what the model wrote."""
    return text_of(row)[:LONGEST_PREVIEW]


def text_of(row: Mapping[str, Any]) -> str:
    """What the model wrote: where only messages are there, its last one; a tool's answer is none of its own."""
    for key in ("prediction", "text", "completion", "output"):
        if (found := row.get(key)) and isinstance(found, str):
            return found
    said = (one for one in map(part, reversed(items(row.get("messages")))) if one.get("role") == "assistant")
    return text(next(said, dict[str, Any]()).get("content"))


def detail_of(rollout: Rollout, raw: Object, group: Sequence[str]) -> RolloutDetail:
    """One rollout, whole; `group` are the ids of its task's samples, in order."""
    at = group.index(rollout.id) if rollout.id in group else -1
    messages = [cast(Object, one) for one in items(raw.get("messages")) if isinstance(one, dict)]
    if not messages and (prompt := text(raw.get("prompt"))):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text_of(raw)}]
    return RolloutDetail(
        rollout=rollout,
        messages=messages,
        text=text_of(raw),
        info=part(raw, "info"),
        expected=text(raw.get("expected")),
        error=text(raw.get("error")),
        raw=raw,
        previous=group[at - 1] if at > 0 else None,
        following=group[at + 1] if 0 <= at < len(group) - 1 else None,
    )


def check_outcome(query: RolloutQuery) -> None:
    """Refuse an outcome that no rollout has."""
    if query.outcome and query.outcome not in OUTCOMES:
        raise BadQuery(f"outcome is {query.outcome[:40]!r}. It can be {', '.join(OUTCOMES)}.")


class Line(NamedTuple):
    """What the list needs of one rollout on a disk; a hundred thousand are made and sorted at once."""

    arm: str
    split: str
    name: str
    step: int
    task: str
    sample: int
    status: str
    reward: float | None
    tokens: int | None
    turns: int | None
    preview: str
    file: str
    """Below the folder of the experiment ..."""
    begin: int
    """... and where in it the rollout begins."""

    @property
    def place(self) -> Place:
        return -self.step, self.arm, self.split, self.name, self.task, self.sample

    @property
    def id(self) -> str:
        return write_cursor(self.arm, self.file, self.begin)

    def show(self) -> Rollout:
        shown = {name: getattr(self, name) for name in Rollout.model_fields}
        return Rollout(**shown)


class Everything:
    """All rollouts of an experiment in the order of the list, later steps first, and what they can be narrowed by."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = sorted(lines, key=lambda one: (-one[3], *one[:3], one[4], one[5]))  # its place, without the calls
        self.arms = sorted({one.arm for one in self.lines})
        self.sets = sorted({f"{split}/{name}" if name else split for split, name in {one[1:3] for one in self.lines}})
        self.steps = sorted({one.step for one in self.lines})

    @cached_property
    def texts(self) -> list[str]:
        """What a search looks at, for each."""
        return [f"{one.task} {one.preview}".casefold() for one in self.lines]


@dataclass(frozen=True, slots=True)
class Selection:
    """The rollouts that meet a query, in the order of the list; made once for all pages of it."""

    wanted: Sequence[Line]
    about: Rollouts
    """The answer without rows."""


def select_rollouts(everything: Everything, query: RolloutQuery, among: Sequence[Line] | None = None) -> Selection:
    """Those that meet a query; `among` are, in order, all that can."""
    check_outcome(query)
    found = everything.lines if among is None else among
    if query.search:
        words = query.search.casefold()
        if among is None:
            found = [one for one, text in zip(found, everything.texts, strict=True) if words in text]
        else:
            found = [one for one in found if words in f"{one.task} {one.preview}".casefold()]
    for is_wanted in _conditions(query):
        found = [one for one in found if is_wanted(one)]
    bins, edges = histogram([one.reward for one in found])
    about = Rollouts(
        items=[],
        next=None,
        total=len(found),
        arms=everything.arms,
        sets=everything.sets,
        steps=everything.steps,
        rewards=bins,
        reward_range=edges,
    )
    return Selection(found, about)


def page_of(selection: Selection, query: RolloutQuery) -> Rollouts:
    """The rows after a cursor, or from an offset on."""
    begin = query.offset
    # The cursor names the last rollout that was shown, not a number: what came in since moves all numbers.
    if query.cursor:
        step, arm, split, name, task, sample = read_cursor(query.cursor, int, str, str, str, str, int)
        begin = bisect_right(selection.wanted, (step, arm, split, name, task, sample), key=lambda one: one.place)
    page = selection.wanted[begin : begin + query.limit]
    following = write_cursor(*page[-1].place) if page and begin + len(page) < len(selection.wanted) else None
    return selection.about.model_copy(update={"items": [one.show() for one in page], "next": following})


def histogram(rewards: Iterable[float | None]) -> tuple[list[int], list[float]]:
    """How many rewards are in each tenth between the lowest and the highest; 0 and 1 where all lie between them."""
    known = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *known]), max([1.0, *known])
    bins = [0] * _BINS
    for reward in known:
        bins[min(int((reward - low) / (high - low) * _BINS), _BINS - 1)] += 1
    return bins, [low, high]


def _conditions(query: RolloutQuery) -> Iterator[Callable[[Line], bool]]:
    """One test for each thing that a query asks, the text aside."""
    for name in ("arm", "split", "name", "task"):
        if value := getattr(query, name):
            yield lambda one, name=name, value=value: getattr(one, name) == value
    if query.step is not None:
        yield lambda one: one.step == query.step
    if (low := query.min_reward) is not None:
        yield lambda one: one.reward is not None and one.reward >= low
    if (high := query.max_reward) is not None:
        yield lambda one: one.reward is not None and one.reward <= high
    if query.outcome:
        yield lambda one: _outcome(one.reward) == query.outcome


def _outcome(reward: float | None) -> str:
    return "error" if reward is None else "passed" if reward >= 1.0 else "failed"
