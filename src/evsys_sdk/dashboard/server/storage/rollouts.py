"""Rollouts in the database: the table for the queries of `views/rollouts.py`, and the prompts of tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from ....record.values import text
from ...views.source import NotFound, Object
from . import schema

_TABLE, _RUN = schema.rollout, schema.run
_MOST_PROMPTS = 2000


class StoredRollouts:
    """A `RolloutTable` over the rollouts of one experiment."""

    key: Sequence[str] = ("no",)

    def __init__(self, connection: Connection, project: str, experiment: str) -> None:
        self._connection, self._experiment = connection, (project, experiment)
        self._is_postgres = connection.dialect.name == "postgresql"

    def read(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> Sequence[Sequence[Any]]:
        # A subquery, because `run` and `rollout` share column names.
        rows = (
            "SELECT rollout.*, run.arm FROM rollout JOIN run ON run.no = rollout.run_no "
            "WHERE run.project_id = ? AND run.experiment_id = ?"
        )
        where = f"WHERE {condition}" if condition else ""
        sql = f"SELECT {', '.join(columns)} FROM ({rows}) AS rollout {where} {tail}"
        parameters = (*self._experiment, *values)
        return self._connection.exec_driver_sql(sql.replace("?", "%s") if self._is_postgres else sql, parameters).all()

    def search(self, words: str) -> tuple[str, str]:
        # SQLite's LIKE ignores case for ASCII only; its `lower` is a Python function, called for each row.
        body = "body" if words.isascii() and not self._is_postgres else "lower(body)"
        for special in "/%_":
            words = words.replace(special, f"/{special}")
        return f"{body} LIKE ? ESCAPE '/'", f"%{words.lower()}%"

    def write_id(self, key: Sequence[Any]) -> str:
        return str(key[0])

    def read_id(self, id: str) -> Sequence[Any]:
        # A number that exceeds the column would be a database error instead of NotFound.
        if not id.isdecimal() or len(id) > 15:
            raise NotFound("rollout", id)
        return (int(id),)

    def body(self, key: Sequence[Any]) -> Object:
        [(body,)] = self.read(("body",), "no = ?", key)
        return json.loads(body)


def read_prompts(connection: Connection, project: str, experiment: str, split: str, name: str) -> dict[str, str]:
    """The prompts of a benchmark's tasks by task, taken from the latest rollout of each."""
    same = (_RUN.c.project_id == project, _RUN.c.experiment_id == experiment, _TABLE.c.split == split)
    latest = (
        select(func.max(_TABLE.c.no))
        .join(_RUN, _RUN.c.no == _TABLE.c.run_no)
        .where(*same, _TABLE.c.name == name)
        .group_by(_TABLE.c.task)
    )
    rows = connection.execute(select(_TABLE.c.task, _TABLE.c.body).where(_TABLE.c.no.in_(latest)).limit(_MOST_PROMPTS))
    prompts = {str(task): text(json.loads(body).get("prompt")) for task, body in rows}
    return {task: prompt for task, prompt in prompts.items() if prompt}
