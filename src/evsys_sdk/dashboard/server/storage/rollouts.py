"""Rollouts in the database: pages of them, and one of them whole."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, tuple_
from sqlalchemy.engine import RowMapping

from ....record.values import text
from ...shapes.record import Rollout, RolloutDetail, Rollouts
from ...views.rollouts import check_outcome, detail_of, histogram
from ...views.source import NotFound, Object, RolloutQuery, read_cursor, write_cursor
from . import schema

_TABLE, _RUN = schema.rollout, schema.run
_SHOWN = [column for column in _TABLE.c if column.name != "body"]  # a page shows previews; what was said may be long
_ORDER = (-_TABLE.c.step, _RUN.c.arm, _TABLE.c.split, _TABLE.c.name, _TABLE.c.task, _TABLE.c.sample)
_MOST_FOR_HISTOGRAM = 200_000
_MOST_PROMPTS = 2000


def list_rollouts(connection: Connection, project: str, experiment: str, query: RolloutQuery) -> Rollouts:
    """A page of the rollouts of an experiment; later steps first."""
    check_outcome(query)
    mine = (_RUN.c.project_id == project, _RUN.c.experiment_id == experiment)
    everything = select(_RUN.c.arm, _TABLE.c.split, _TABLE.c.name, _TABLE.c.step).distinct().join(_RUN, _join())
    places = connection.execute(everything.where(*mine)).all()
    wanted = [*mine, *_conditions(query, is_postgres=connection.dialect.name == "postgresql")]
    # What a search finds is looked for once, and then counted, summed up and shown.
    matching = select(_TABLE.c.no, _TABLE.c.reward).join(_RUN, _join()).where(*wanted)
    matches = connection.execute(matching.order_by(*_ORDER)).all() if query.search else None
    if matches is None:
        n_wanted = connection.execute(select(func.count()).select_from(_TABLE).join(_RUN, _join()).where(*wanted))
        total = int(n_wanted.scalar_one())
        rewards = select(_TABLE.c.reward).join(_RUN, _join()).where(*wanted, _TABLE.c.reward.is_not(None))
        known = list(connection.execute(rewards.limit(_MOST_FOR_HISTOGRAM)).scalars())
    else:
        total, known = len(matches), [reward for _, reward in matches]
    bins, edges = histogram(known)
    page = select(*_SHOWN, _RUN.c.arm).join(_RUN, _join()).where(*wanted)
    begin = 0 if query.cursor else query.offset
    if matches is not None and not query.cursor:
        page = select(*_SHOWN, _RUN.c.arm).join(_RUN, _join())
        page, begin = page.where(_TABLE.c.no.in_([no for no, _ in matches[begin : begin + query.limit + 1]])), 0
    if query.cursor:
        page = page.where(_after(read_cursor(query.cursor, int, str, str, str, str, int)))
    rows = connection.execute(page.order_by(*_ORDER).limit(query.limit + 1).offset(begin)).mappings().all()
    found = [_rollout(row) for row in rows[: query.limit]]
    last = found[-1] if len(rows) > query.limit and found else None
    return Rollouts(
        items=found,
        next=last and write_cursor(-last.step, last.arm, last.split, last.name, last.task, last.sample),
        total=total,
        arms=sorted({str(row[0]) for row in places}),
        sets=sorted({f"{row[1]}/{row[2]}" if row[2] else str(row[1]) for row in places}),
        steps=sorted({int(row[3]) for row in places}),
        rewards=bins,
        reward_range=edges,
    )


def read_rollout(connection: Connection, project: str, experiment: str, id: str) -> RolloutDetail:
    """One rollout, whole."""
    # A number that no column holds would be an error of the database instead of one that is not there.
    if not id.isdecimal() or len(id) > 15:
        raise NotFound("rollout", id)
    mine = (_RUN.c.project_id == project, _RUN.c.experiment_id == experiment)
    query = select(_TABLE, _RUN.c.arm).join(_RUN, _join()).where(*mine, _TABLE.c.no == int(id))
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound("rollout", id)
    group = select(_TABLE.c.no).where(
        *(_TABLE.c[name] == row[name] for name in ("run_no", "split", "name", "step", "task"))
    )
    ids = [str(no) for no in connection.execute(group.order_by(_TABLE.c.sample)).scalars()]
    raw: Object = json.loads(row["body"])
    return detail_of(_rollout(row), raw, ids)


def read_prompts(connection: Connection, project: str, experiment: str, split: str, name: str) -> dict[str, str]:
    """What the tasks of a benchmark ask, from one answer to each, where clients sent it."""
    same = (_RUN.c.project_id == project, _RUN.c.experiment_id == experiment, _TABLE.c.split == split)
    one = select(func.max(_TABLE.c.no)).join(_RUN, _join()).where(*same, _TABLE.c.name == name).group_by(_TABLE.c.task)
    rows = connection.execute(select(_TABLE.c.task, _TABLE.c.body).where(_TABLE.c.no.in_(one)).limit(_MOST_PROMPTS))
    told = {str(task): text(json.loads(body).get("prompt")) for task, body in rows}
    return {task: prompt for task, prompt in told.items() if prompt}


def _join() -> ColumnElement[bool]:
    return _RUN.c.no == _TABLE.c.run_no


def _after(place: list[Any]) -> ColumnElement[bool]:
    """Everything after a place in the order of the list."""
    first, rest = _ORDER[0], tuple_(*_ORDER[1:])
    return or_(first > place[0], and_(first == place[0], rest > tuple_(*place[1:])))


def _rollout(row: RowMapping) -> Rollout:
    same = ("arm", "split", "name", "step", "task", "sample", "status", "reward", "tokens", "turns", "preview")
    return Rollout(id=str(row["no"]), **{name: row[name] for name in same})


def _conditions(query: RolloutQuery, *, is_postgres: bool) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for column, value in (
        (_RUN.c.arm, query.arm),
        (_TABLE.c.split, query.split),
        (_TABLE.c.name, query.name),
        (_TABLE.c.task, query.task),
    ):
        if value:
            found.append(column == value)
    if query.step is not None:
        found.append(_TABLE.c.step == query.step)
    if query.min_reward is not None:
        found.append(_TABLE.c.reward >= query.min_reward)
    if query.max_reward is not None:
        found.append(_TABLE.c.reward <= query.max_reward)
    outcomes: dict[str, ColumnElement[bool]] = {
        "passed": _TABLE.c.reward >= 1.0,
        "failed": _TABLE.c.reward < 1.0,
        "error": _TABLE.c.reward.is_(None),
    }
    if query.outcome:
        found.append(outcomes[query.outcome])
    if query.search:
        # SQLite compares the letters of ASCII alike by itself, and calls Python for each row to lower the others.
        body = _TABLE.c.body if query.search.isascii() and not is_postgres else func.lower(_TABLE.c.body)
        found.append(body.contains(query.search.lower(), autoescape=True))
    return found
