"""The remedies for a key in the wrong place and for a value of the wrong type."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from ...errors import closest
from ..base import KindSpec
from ..fields import Path, item_models_in, models_at, models_in

_OTHER_NAMES = {
    "validation": "Write the block as `eval`, or its tasks as an entry of metadata.benchmark: "
    "{path: tasks.jsonl, split: val, run_every: 20}."
}
"""Common wrong names of blocks -> what to write."""


def where_the_key_belongs(root: type[BaseModel], loc: Path, siblings: Collection[str]) -> str:
    """The remedy for an unknown key at `loc`: the block it belongs to, or the closest known key."""
    models, key = models_at(root, loc[:-1]), str(loc[-1])
    fields = {name: field.annotation for model in models for name, field in model.model_fields.items()}
    blocks = {name: [*models_in(type_), *item_models_in(type_)] for name, type_ in fields.items()}
    below = [name for name, inner in blocks.items() if any(key in model.model_fields for model in inner)]
    # Of several blocks with this key, prefer those that the file has.
    below = [name for name in below if name in siblings] or below
    if key in _OTHER_NAMES and not below:
        return _OTHER_NAMES[key]
    if below:
        return f"Move it into {' or '.join(repr(name) for name in below)}."
    if guess := closest(key, fields):
        return f"Did you mean '{guess}'?"
    for level in range(len(loc) - 2, -1, -1):
        if any(key in model.model_fields for model in models_at(root, loc[:level])):
            return f"Move it next to '{loc[level]}'."
    if any(issubclass(model, KindSpec) for model in models):
        return "Move it into 'params'."
    return f"Known keys here: {', '.join(sorted(fields))}." if fields else "Remove it."


def how_to_write(expected: str, value: Any, models: list[type[BaseModel]]) -> str:
    """The remedy for a value that is not `expected`; `models` are the models allowed here."""
    if value is None:
        return "Give it a value, or remove the key."
    match expected:
        case "text":
            return f'Put it in quotes: "{json.dumps(value)}".' if isinstance(value, int | float) else "Write text."
        case "true or false":
            return "Remove the quotes around it." if value in ("true", "false") else "Write true or false."
        case "a list":
            scalar = isinstance(value, str | int | float)
            return f"Write [{_item(value, models)}]." if scalar else "Begin each item with '- '."
        case "a mapping of keys to values":
            return _as_mapping(value, models)
        case _:
            return _as_number(value)


def _as_number(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"Write {value:.0f}."
    try:
        float(value)
    except (TypeError, ValueError):
        return "Write a number."
    if isinstance(value, bool | float):
        return "Write a number." if isinstance(value, bool) else "Round it."
    return f"Write {value.replace('_', '')}." if "_" in value else "Remove the quotes around it."


def _as_mapping(value: Any, models: list[type[BaseModel]]) -> str:
    if isinstance(value, str) and _item(value, models) != value:
        return f"Write {_item(value, models)}."
    keys = [name for model in models for name in model.model_fields]
    return f"Write 'key: value' lines; the keys here are {', '.join(keys)}." if keys else "Write 'key: value' lines."


def _item(value: Any, models: list[type[BaseModel]]) -> str:
    """A block for a plain value: `{kind: dedupe}` for `dedupe`."""
    keys = {name for model in models for name in model.model_fields}
    key = next((name for name in ("kind", "name") if name in keys), None)
    return f"{{{key}: {value}}}" if key else str(value)
