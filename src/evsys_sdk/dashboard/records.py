"""What travels from client to server: the kinds of records, and what an experiment and a run can say of themselves.

| kind | has | means |
|---|---|---|
| `stream` | stream, format, project | the first record of every stream |
| `experiment` | id, set | what is known of an experiment; each field replaces what was known |
| `run` | id, experiment (the first time), set | the same of a run |
| `step` | run, at, line | metrics of one step, as in `metrics.jsonl` |
| `score` | id, run, line | one scoring, as in `scores.jsonl` |
| `rollouts` | run, split, name, step, rows | predictions or rollouts of one scoring |
| `rewind` | run, next_step | the run continues from before that step; what came after it is forgotten |
| `event` | experiment, event | one line of the journal; counts once by its id |
| `spend` | experiment, number, line | one line of the ledger; counts once by its number |
| `benchmark` | id, name, metadata | which benchmark is scored on |
| `anchor` | experiment, events, head | how long a journal was, and the hash that it ended with |
| `loop` | system, at, page | how a closed loop stood; the latest counts |
| `answer` | request, state, answer | what came of a request |

An experiment can state every plain field of its view, and what a view is made from; a run every plain field of its
record, and what lies in its folder. What no one states follows from the other records, as it does on a disk.
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
_NOT_IN_IDS = frozenset("/\\")  # quoted or not, they part an address; everything else that names have can be quoted


def _statements(kind: str, model: type) -> dict[str, _Kind]:
    """Field -> what JSON it is."""
    own = {one.name: str(one.type).removesuffix(" | None") for one in fields(model) if one.name not in ("id", "path")}
    found = {name: _KINDS.get(stated) or _KINDS.get(stated.partition("[")[0]) for name, stated in own.items()}
    more = {name: wanted for wanted, names in _MORE[kind].items() for name in names.split()}
    return {name: wanted for name, wanted in found.items() if wanted is not None} | more


STATEMENTS = {"experiment": _statements("experiment", ExperimentView), "run": _statements("run", RunRecord)}
"""What each can say of itself; the server keeps the last value of each field."""


def check_fields(kind: Literal["experiment", "run"], fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields`, if an experiment or a run has them; null forgets a value."""
    known = STATEMENTS[kind]
    for name, value in fields.items():
        if name not in known:
            hint = suggest(name, known) or f"Known: {', '.join(known)}."
            raise DataError(f"a {kind} has no field {show(name)}. {hint}")
        wanted = known[name]
        # in Python a truth value is a whole number, too
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise DataError(f"{name} of a {kind} is {show(value)}. It should be {_WORDS[wanted]}.")
    return dict(fields)


def check_id(id: Any, what: str = "id") -> str:
    """`id`, if it is text that can be part of an address."""
    if (
        isinstance(id, str)
        and len(id) <= LONGEST_ID
        and id.isprintable()
        and id == id.strip()
        and id.strip(".")  # "." and ".." mean something else in an address
        and not _NOT_IN_IDS & set(id)
    ):
        return id
    raise DataError(
        f"{what} is {show(id)}. Ids are up to {LONGEST_ID} characters without slashes, and without spaces around them."
    )
