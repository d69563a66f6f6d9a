"""Queries over rollouts for records on disk and on a server: filters, search, pages, and single rollouts.

A `RolloutTable` has one row for each rollout of an experiment: an index of the files of a disk (`local/rollouts.py`) or
a table of the server's database. Conditions are SQL that SQLite and PostgreSQL share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from ...record.values import items, part, text
from ..shapes.record import RolloutDetail, RolloutLine, Rollouts
from .source import BadQuery, NotFound, Object, RolloutQuery, read_cursor, write_cursor

LONGEST_PREVIEW = 300
COLUMNS = ("arm", "split", "name", "step", "task", "sample", "status", "reward", "tokens", "turns", "preview")
ORDER = "-step, arm, split, name, task, sample"
"""Later steps first; all terms ascending, so that one tuple comparison finds the rows after a cursor."""
_OUTCOMES = {"passed": "reward >= 1.0", "failed": "reward < 1.0", "error": "reward IS NULL"}
_BINS = 10


class RolloutTable(Protocol):
    """The rollouts of one experiment, with `COLUMNS`."""

    key: Sequence[str]
    """The columns that identify a rollout."""

    def read(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> Sequence[Sequence[Any]]:
        """Columns of the rows that match an SQL condition; `tail` orders and limits them."""
        ...

    def search(self, words: str) -> tuple[str, str]:
        """The SQL condition, with its value, that the text of a rollout contains these words."""
        ...

    def write_id(self, key: Sequence[Any]) -> str: ...
    def read_id(self, id: str) -> Sequence[Any]:
        """The key that `write_id` encoded; raise BadQuery or NotFound for other text."""
        ...

    def body(self, key: Sequence[Any]) -> Object:
        """A rollout as it was recorded."""
        ...


def list_rollouts(table: RolloutTable, query: RolloutQuery) -> Rollouts:
    """A page of the rollouts of an experiment."""
    condition, values = _condition(table, query)
    places = table.read(("DISTINCT arm", "split", "name", "step"))
    rewards = [reward for (reward,) in table.read(("reward",), condition, values)]
    bins, edges = histogram(rewards)
    begin = query.offset
    # The cursor is the key of the last rollout, not an offset: new rollouts would shift offsets.
    if query.cursor:
        begin, place = 0, read_cursor(query.cursor, int, str, str, str, str, int)
        later = f"({ORDER}) > (?,?,?,?,?,?)"
        condition, values = f"{condition} AND {later}" if condition else later, [*values, *place]
    tail = f"ORDER BY {ORDER} LIMIT {query.limit + 1} OFFSET {begin}"
    rows = table.read((*COLUMNS, *table.key), condition, values, tail)
    lines = [_show(table, row) for row in rows[: query.limit]]
    last = lines[-1] if len(rows) > query.limit and lines else None
    return Rollouts(
        items=lines,
        next=last and write_cursor(-last.step, last.arm, last.split, last.name, last.task, last.sample),
        total=len(rewards),
        arms=sorted({arm for arm, *_ in places}),
        sets=sorted({f"{split}/{name}" if name else split for _, split, name, _ in places}),
        steps=sorted({step for *_, step in places}),
        rewards=bins,
        reward_range=edges,
    )


def read_rollout(table: RolloutTable, id: str) -> RolloutDetail:
    """One complete rollout, with the ids of the previous and next sample of its task."""
    key = table.read_id(id)
    rows = table.read((*COLUMNS, *table.key), " AND ".join(f"{name} = ?" for name in table.key), key)
    if not rows:
        raise NotFound("rollout", id)
    same = "arm = ? AND split = ? AND name = ? AND step = ? AND task = ?"
    group = [table.write_id(item) for item in table.read(table.key, same, rows[0][:5], "ORDER BY sample")]
    raw, at = table.body(key), group.index(id) if id in group else -1
    messages = [cast(Object, item) for item in items(raw.get("messages")) if isinstance(item, dict)]
    if not messages and (prompt := text(raw.get("prompt"))):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text_of(raw)}]
    return RolloutDetail(
        rollout=_show(table, rows[0]),
        messages=messages,
        text=text_of(raw),
        info=part(raw, "info"),
        expected=text(raw.get("expected")),
        error=text(raw.get("error")),
        raw=raw,
        previous=group[at - 1] if at > 0 else None,
        following=group[at + 1] if 0 <= at < len(group) - 1 else None,
    )


def text_of(row: Mapping[str, Any]) -> str:
    """The text that the model wrote; if a row has only messages, the last assistant message."""
    for key in ("prediction", "text", "completion", "output"):
        if (written := row.get(key)) and isinstance(written, str):
            return written
    replies = (turn for turn in map(part, reversed(items(row.get("messages")))) if turn.get("role") == "assistant")
    return text(next(replies, dict[str, Any]()).get("content"))


def histogram(rewards: Iterable[float | None]) -> tuple[list[int], list[float]]:
    """The counts of rewards in ten equal bins, and the range, which always includes 0 and 1."""
    finite = [reward for reward in rewards if reward is not None]
    low, high = min([0.0, *finite]), max([1.0, *finite])
    bins = [0] * _BINS
    for reward in finite:
        bins[min(int((reward - low) / (high - low) * _BINS), _BINS - 1)] += 1
    return bins, [low, high]


def _show(table: RolloutTable, row: Sequence[Any]) -> RolloutLine:
    shown = dict(zip(COLUMNS, row, strict=False))
    return RolloutLine(id=table.write_id(row[len(COLUMNS) :]), **shown)


def _condition(table: RolloutTable, query: RolloutQuery) -> tuple[str, list[Any]]:
    """Convert a query to an SQL condition and its values."""
    if query.outcome and query.outcome not in _OUTCOMES:
        raise BadQuery(f"outcome is {query.outcome[:40]!r}. It can be {', '.join(_OUTCOMES)}.")
    terms: list[tuple[str, Any]] = [
        (f"{name} = ?", value) for name in ("arm", "split", "name", "task") if (value := getattr(query, name))
    ]
    bounds = {"step = ?": query.step, "reward >= ?": query.min_reward, "reward <= ?": query.max_reward}
    terms += [(part, value) for part, value in bounds.items() if value is not None]
    if query.search:
        terms.append(table.search(query.search))
    parts = [part for part, _ in terms] + ([_OUTCOMES[query.outcome]] if query.outcome else [])
    return " AND ".join(parts), [value for _, value in terms]
