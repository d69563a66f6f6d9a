"""Eval datasets: JSONL with a question, the slug that answers it, and optionally the toolkit it belongs to.

    {"query": "Email Ada the minutes", "tool_slug": "GMAIL_SEND_EMAIL", "toolkit": "gmail"}

The question is `query` or `prompt` (text) or `messages` (a conversation, asked as it is); the slug is `tool_slug`,
`answer` or `target`. `id` or `task_id` names a row; without one, its line does. Other keys are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.jsonl import numbered_rows
from ...data.shapes import checked_messages
from ...data.types import Message
from ...errors import DataError, show

QUESTION_FIELDS = ("prompt", "query", "messages")
TARGET_FIELDS = ("tool_slug", "answer", "target")
_ID_FIELDS = ("id", "task_id")


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One question and the slug that is right."""

    id: str
    question: str | list[Message]
    target: str
    toolkit: str | None = None


def load_eval_dataset(source: str | Path | Iterable[Mapping[str, Any]]) -> list[EvalRow]:
    """The rows of a JSONL file, or of raw rows at hand; anything that could not be scored is refused."""
    if isinstance(source, str | Path):
        name, raw = str(source), numbered_rows(source)
    else:
        name, raw = "rows", enumerate(source, 1)
    rows: dict[str, EvalRow] = {}
    lines: dict[str, int] = {}
    for number, fields in raw:
        try:
            row = _row(fields, number)
        except DataError as error:
            raise DataError(f"{name}:{number}: {error}") from None
        if row.id in rows:
            raise DataError(
                f"{name}:{number}: the id {show(row.id)} already stands in line {lines[row.id]}. Rename one."
            )
        rows[row.id], lines[row.id] = row, number
    if not rows:
        raise DataError(f"{name}: there are no rows to score. Check the file.")
    return list(rows.values())


def _row(fields: Mapping[str, Any], number: int) -> EvalRow:
    toolkit = fields.get("toolkit")
    if toolkit is not None and (not isinstance(toolkit, str) or not toolkit.strip()):
        raise DataError(f"'toolkit' must be non-empty text, not {show(toolkit)}. Leave it out where there is none.")
    return EvalRow(_id(fields, number), _question(fields), _target(fields), toolkit)


def _id(fields: Mapping[str, Any], number: int) -> str:
    value = next((fields[name] for name in _ID_FIELDS if fields.get(name) is not None), f"row-{number}")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"the id must be text or a whole number, not {show(value)}.")
    return str(value)


def _question(fields: Mapping[str, Any]) -> str | list[Message]:
    [name] = _present(fields, QUESTION_FIELDS, "question")[:1]
    value = fields[name]
    if name != "messages" and not isinstance(value, list):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"'{name}' must be non-empty text, not {show(value)}.")
        return value
    messages = checked_messages(value)
    if messages[-1]["role"] == "assistant":
        raise DataError("the messages end with an assistant turn, which gives the answer away. Remove that turn.")
    return messages


def _target(fields: Mapping[str, Any]) -> str:
    [name] = _present(fields, TARGET_FIELDS, "target")[:1]
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"'{name}' must be a slug, not {show(value)}.")
    return value.strip()


def _present(fields: Mapping[str, Any], names: Sequence[str], what: str) -> list[str]:
    """Which of `names` the row has; two that disagree would leave open what is scored."""
    present = [name for name in names if fields.get(name) is not None]
    if not present:
        keys = ", ".join(map(str, fields)) or "none"
        raise DataError(f"the row has no {what}: add one of {', '.join(names)}. Its keys: {keys}.")
    for other in present[1:]:
        if fields[other] != fields[present[0]]:
            raise DataError(f"'{present[0]}' and '{other}' differ, and both are a {what}. Remove one of them.")
    return present
