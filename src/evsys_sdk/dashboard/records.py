"""What travels from client to server: the kinds of records, and what an experiment and a run can say of themselves.

| kind | has | means |
|---|---|---|
| `stream` | stream, format, project | the first record of every stream |
| `experiment` | id, set | what is known of an experiment; each field replaces what was known |
| `run` | id, experiment (the first time), set | the same of a run |
| `step` | run, at, line | metrics of one step, as in `metrics.jsonl` |
| `score` | id, run, line | one scoring, as in `scores.jsonl` |
| `rollouts` | run, split, name, step, rows | predictions or rollouts of one scoring |
| `rewind` | run, next_step | the run goes on from before that step; what came after it is forgotten |
| `event` | experiment, event | one line of the journal; counts once by its id |
| `spend` | experiment, number, line | one line of the ledger; counts once by its number |
| `benchmark` | id, name, metadata | which benchmark is scored on |
| `anchor` | experiment, events, head | how long a journal was, and the hash that it ended with |
| `loop` | system, at, page | how a closed loop stood; the latest counts |
| `answer` | request, state, answer | what came of a request |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DataError, closest, show

EXPERIMENT_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(["name", "description", "hypothesis", "status", "verdict", "sentence", "metric", "mode"], str),
    **dict.fromkeys(["best_run", "parent_id", "invalidated", "conclusion_text", "recipe_kind", "config_sha256"], str),
    **dict.fromkeys(["best_score", "best_low", "best_high", "started", "ended"], (int, float)),
    **dict.fromkeys(["n_runs", "n_arms", "n_done", "n_failures"], int),
    **dict.fromkeys(["tags", "models", "algorithms", "backends", "varied", "flags"], list),
    **dict.fromkeys(["spend", "config", "conclusion", "commands"], dict),
}
"""Field -> what JSON it is; the server keeps the last value of each."""
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(["name", "run", "status", "error", "unscored", "recipe_kind"], str),
    **dict.fromkeys(["seed", "step", "total_steps"], int),
    **dict.fromkeys(["started", "ended", "best_score"], (int, float)),
    **dict.fromkeys(["metrics", "spend", "artifacts", "config"], dict),
    **dict.fromkeys(["checkpoints", "datasets", "benchmarks"], list),
}
"""The same for a run."""
_WORDS: dict[type | tuple[type, ...], str] = {
    str: "text",
    int: "a whole number",
    (int, float): "a number",
    list: "a list",
    dict: "a mapping",
}
LONGEST_ID = 200
_NOT_IN_IDS = frozenset("/\\")  # quoted or not, they part an address; everything else that names have can be quoted


def check_fields(kind: str, fields: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """`fields`, if an experiment or a run has them; null forgets a value."""
    for name, value in fields.items():
        if name not in known:
            guess = closest(name, known)
            hint = f"Did you mean '{guess}'?" if guess else f"Known: {', '.join(known)}."
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
