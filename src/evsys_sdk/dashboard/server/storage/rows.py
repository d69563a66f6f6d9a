"""Rows of the tables as what the read API speaks of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy.engine import RowMapping

from ....record.values import number, part, text
from ...shapes import Event, Note
from ...views.source import ArmData, Object

MOST_WORDS = 200


def arm_of(row: RowMapping, last: dict[str, float]) -> ArmData:
    """What is recorded of an arm; `last` are the last values it logged, where it did not sum them up itself."""
    failed = str(row["error"]) or "it failed, and no reason was given"
    problem = failed if row["status"] == "failed" else row["unscored"] and f"unscored: {row['unscored']}"
    told = {name: value for name, raw in read_object(row["metrics"]).items() if (value := number(raw)) is not None}
    return ArmData(
        arm=str(row["arm"]),
        run=str(row["run"]),
        seed=row["seed"],
        status=str(row["status"]),
        problem=str(problem),
        metrics=told or last,
        spend={name: value for name, raw in read_object(row["spend"]).items() if (value := number(raw)) is not None},
        step=row["step"],
        total_steps=row["total_steps"],
        checkpoints=read_objects(row["checkpoints"]),
        datasets=read_objects(row["datasets"]),
        benchmarks=read_objects(row["benchmarks"]),
    )


def event_of(row: RowMapping) -> Event:
    """A line of a journal."""
    return Event(id=str(row["id"]), time=row["time"], kind=str(row["kind"]), data=read_object(row["data"]))


def note_of(event: Event) -> Note:
    """A note, which is an event too."""
    return Note(id=event.id, text=text(event.data.get("text")), author=text(event.data.get("author")), time=event.time)


def count_words(words: Iterable[str]) -> dict[str, int]:
    """How often each word occurs."""
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def list_words(columns: Iterable[Any]) -> list[str]:
    """Every word of columns that hold lists."""
    return sorted({word for column in set(columns) for word in read_texts(column)})[:MOST_WORDS]


def read_object(value: Any) -> Object:
    """JSON text that holds an object."""
    return {} if value in ("{}", "", None) else part({"it": json.loads(value)}, "it")


def read_objects(value: Any) -> list[Object]:
    """The objects of JSON text that holds a list."""
    return [] if value == "[]" else [cast(Object, one) for one in json.loads(value) if isinstance(one, dict)]


def read_texts(value: Any) -> list[str]:
    """The texts of JSON text that holds a list."""
    return [] if value == "[]" else [one for one in json.loads(value) if isinstance(one, str)]
