"""The config of a run as dotted paths and values: what differs between runs, and how a setting is called."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .values import Object, number, part

_NOT_SETTINGS = ("name", "seed", "tags", "eval")
_LONGEST = 80
_DATA = ("data.path", "data.dataset_name", "data.dataset_id", "data.hf_dataset")

type Settings = dict[str, str]
"""Dotted path into a run -> its value, as JSON."""


def settings_of(run: Object) -> Settings:
    """What a run is made of, flat, each value as JSON."""
    flat = flatten_config({key: value for key, value in run.items() if key not in _NOT_SETTINGS})
    return {
        path: _to_json(value) if isinstance(value, list) else _scalar_to_json(value) for path, value in flat.items()
    }


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


_scalar_to_json = functools.lru_cache(maxsize=4096, typed=True)(_to_json)
"""The same few values occur in thousands of configs."""


def flatten_config(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted paths; lists of plain values stay as they are."""
    found: dict[str, Any] = {}
    _flatten(value, prefix, found)
    return found


def _flatten(value: Any, path: str, found: dict[str, Any]) -> None:
    if isinstance(value, dict):
        opening = f"{path}." if path else ""
        for key, inner in cast("Object", value).items():
            _flatten(inner, f"{opening}{key}", found)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in cast("list[Any]", value)):
        for index, inner in enumerate(cast("list[Any]", value)):
            _flatten(inner, f"{path}[{index}]", found)
    elif value is not None and value != "" and value != []:
        found[path] = value


@functools.lru_cache(maxsize=4096)
def short_axis(path: str) -> str:
    """A setting as people call it: `learning_rate`, `backend.lora_rank`, `data`."""
    if path == "algorithm.kind" or path in _DATA:
        return path.partition(".")[0]
    return path.removeprefix("algorithm.params.").replace(".params.", ".")


def data_source(settings: Settings) -> str:
    """The training data of a run, by the name that the config gives it."""
    return next((value_text(settings[name]) for name in _DATA if name in settings), "")


@functools.lru_cache(maxsize=4096)
def value_text(value: str) -> str:
    """A value as one would write it; long ones are cut."""
    found: Any = json.loads(value)
    shown = found if isinstance(found, str) else f"{found:g}" if isinstance(found, float) else value
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def read_setting(settings: Settings, path: str) -> str:
    """One setting as text; nothing where the run does not have it."""
    return value_text(settings[path]) if path in settings else ""


def scalars(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names and plain values; lists are written out as text."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, str):
            found[name] = inner if len(inner) <= _LONGEST else shorten(inner, _LONGEST)
        elif isinstance(inner, dict):
            found |= scalars(part(inner), f"{name}.")
        elif isinstance(inner, list):
            found[name] = shorten(json.dumps(inner, default=str), _LONGEST)
        elif inner is not None and not (isinstance(inner, float) and number(inner) is None):
            found[name] = inner
    return found


def find_varied(runs: Sequence[Object], most: int = 8) -> tuple[list[str], list[dict[str, Any]]]:
    """The dotted paths in which the runs of an experiment differ, and the values of each run there."""
    if not runs:
        return [], []
    flat = [scalars(run) for run in _leave_out_common([{**run, "name": None} for run in runs])]
    names = dict.fromkeys(name for one in flat for name in one)
    varied = [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)][:most]
    return varied, [{name: one.get(name) for name in varied} for one in flat]


def _leave_out_common(blocks: Sequence[Object]) -> list[Object]:
    """Nested data without what is equal in all of it: most of a config is, and need not be made flat."""
    first, *others = blocks
    same = {key for key, value in first.items() if all(block.get(key) == value for block in others)}
    left = [{key: value for key, value in block.items() if key not in same} for block in blocks]
    for key in left[0]:
        if all(isinstance(block.get(key), dict) for block in left):
            inner = _leave_out_common([block[key] for block in left])
            for block, value in zip(left, inner, strict=True):
                block[key] = value
    return left


def shorten(value: str, most: int) -> str:
    """Text of at most so many characters."""
    return value if len(value) <= most else f"{value[: most - 1]}…"
