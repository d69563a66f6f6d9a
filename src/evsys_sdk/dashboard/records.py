"""The records that a client sends to a server: their kinds, and the fields of an experiment and a run.

| kind | has | means |
|---|---|---|
| `stream` | stream, format, project | the first record of every stream |
| `experiment` | id, set | fields of an experiment; each replaces its earlier value |
| `run` | id, experiment (the first time), set | fields of a run; each replaces its earlier value |
| `step` | run, at, line | metrics of one step, as in `metrics.jsonl` |
| `score` | id, run, line | one scoring, as in `scores.jsonl` |
| `rollouts` | run, split, name, step, rows | predictions or rollouts of one scoring |
| `rewind` | run, next_step | the run resumes at this step; its records from this step on are deleted |
| `event` | experiment, event | one line of the journal, stored once per id |
| `spend` | experiment, number, line | one line of the ledger, stored once per number |
| `benchmark` | id, name, metadata | a benchmark that is scored on |
| `anchor` | experiment, events, head | length of a journal, and the hash of its last event |
| `loop` | system, at, page | the state of a closed loop; the latest replaces earlier ones |
| `answer` | request, state, answer | the outcome of a request |

An experiment can set every plain field of its view and the inputs of a view; a run every plain field of its record and
the contents of its folder. Fields that are not set are derived from the other records, as for a record on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from ..errors import DataError, show, suggest
from ..record.runs import RunRecord
from ..record.view.model import ExperimentView

type _Kind = type | tuple[type, ...]
_KINDS: dict[str, _Kind] = {"str": str, "int": int, "float": (int, float), "list[str]": list, "dict": dict}
_WORDS: dict[_Kind, str] = {
    str: "text",
    int: "a whole number",
    (int, float): "a number",
    list: "a list",
    dict: "a mapping",
}
_MORE: dict[str, dict[_Kind, str]] = {
    "experiment": {str: "conclusion_text recipe_kind", dict: "config conclusion commands"},
    "run": {
        str: "recipe_kind",
        int: "step total_steps",
        (int, float): "started ended best_score",
        dict: "config",
        list: "checkpoints datasets benchmarks",
    },
}
LONGEST_ID = 200
_NOT_IN_IDS = frozenset("/\\")  # path separators in a URL even if quoted; all other characters can be quoted


def _field_types(kind: str, model: type) -> dict[str, _Kind]:
    """Field -> its JSON type."""
    declared = {field.name: str(field.type).removesuffix(" | None") for field in fields(model)}
    types = {name: _KINDS.get(text) or _KINDS.get(text.partition("[")[0]) for name, text in declared.items()}
    more = {name: type_ for type_, names in _MORE[kind].items() for name in names.split()}
    return {name: type_ for name, type_ in types.items() if type_ and name not in ("id", "path")} | more


FIELD_TYPES = {"experiment": _field_types("experiment", ExperimentView), "run": _field_types("run", RunRecord)}
"""Fields that a client can set, by kind; the server keeps the last value of each."""


def check_fields(kind: Literal["experiment", "run"], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields` if all are known and of the right type, else raise; null deletes a value."""
    types = FIELD_TYPES[kind]
    for name, value in fields.items():
        if name not in types:
            hint = suggest(name, types) or f"Known: {', '.join(types)}."
            raise DataError(f"a {kind} has no field {show(name)}. {hint}")
        type_ = types[name]
        # `bool` is a subclass of `int`
        if value is not None and (not isinstance(value, type_) or isinstance(value, bool)):
            raise DataError(f"{name} of a {kind} is {show(value)}. It should be {_WORDS[type_]}.")
    return dict(fields)


def check_id(id: Any, what: str = "id") -> str:
    """Return `id` if it can be part of a URL path, else raise."""
    if (
        isinstance(id, str)
        and len(id) <= LONGEST_ID
        and id.isprintable()
        and id == id.strip()
        and id.strip(".")  # "." and ".." are relative path segments
        and not _NOT_IN_IDS & set(id)
    ):
        return id
    raise DataError(
        f"{what} is {show(id)}. Ids are up to {LONGEST_ID} characters without slashes, and without spaces around them."
    )
