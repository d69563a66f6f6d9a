"""The config of a run as dotted paths and values, to compare runs and name settings."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .values import DICT, LIST, Object, number, part

_NOT_SETTINGS = ("name", "seed", "tags", "eval")
_LONGEST = 80
_DATA = ("data.path", "data.dataset_name", "data.dataset_id", "data.hf_dataset")

type Settings = dict[str, str]
"""Dotted path into a run -> its value, as JSON."""


def settings_of(run: Object) -> Settings:
    """The settings of a run, flat, each value as JSON."""
    flat = flatten_config({key: value for key, value in run.items() if key not in _NOT_SETTINGS})
    return {
        path: _to_json(value) if isinstance(value, list) else _scalar_to_json(value) for path, value in flat.items()
    }


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


_scalar_to_json = functools.lru_cache(maxsize=4096, typed=True)(_to_json)
"""Cached, because the same few values occur in thousands of configs."""


def flatten_config(value: Any) -> dict[str, Any]:
    """Nested data as dotted paths; lists of plain values stay as they are."""
    flat: dict[str, Any] = {}
    _flatten(value, "", flat)
    return flat


def _flatten(value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(value, DICT):
        opening = f"{path}." if path else ""
        for key, inner in value.items():
            _flatten(inner, f"{opening}{key}", flat)
    elif isinstance(value, LIST) and any(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            _flatten(inner, f"{path}[{index}]", flat)
    elif value is not None and value != "" and value != []:
        flat[path] = value


@functools.lru_cache(maxsize=4096)
def short_axis(path: str) -> str:
    """The short name of a setting: `learning_rate`, `backend.lora_rank`, `data`."""
    if path == "algorithm.kind" or path in _DATA:
        return path.partition(".")[0]
    return path.removeprefix("algorithm.params.").replace(".params.", ".")


def data_source(settings: Settings) -> str:
    """The name of a run's training data in the config."""
    return next((value_text(settings[name]) for name in _DATA if name in settings), "")


@functools.lru_cache(maxsize=4096)
def value_text(value: str) -> str:
    """A JSON value as display text of at most 60 characters."""
    parsed: Any = json.loads(value)
    shown = parsed if isinstance(parsed, str) else f"{parsed:g}" if isinstance(parsed, float) else value
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def read_setting(settings: Settings, path: str) -> str:
    """One setting as text; empty if the run does not have it."""
    return value_text(settings[path]) if path in settings else ""


def scalars(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names and plain values; lists become text."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, str):
            flat[name] = inner if len(inner) <= _LONGEST else shorten(inner, _LONGEST)
        elif isinstance(inner, dict):
            flat |= scalars(part(inner), f"{name}.")
        elif isinstance(inner, list):
            flat[name] = shorten(json.dumps(inner, default=str), _LONGEST)
        elif inner is not None and not (isinstance(inner, float) and number(inner) is None):
            flat[name] = inner
    return flat


def find_varied(runs: Sequence[Object]) -> tuple[list[str], list[dict[str, Any]]]:
    """The first eight dotted paths in which the runs of an experiment differ, and each run's values."""
    if not runs:
        return [], []
    flat = [scalars(run) for run in _leave_out_common([{**run, "name": None} for run in runs])]
    names = dict.fromkeys(name for settings in flat for name in settings)
    varied = [name for name in names if any(settings.get(name) != flat[0].get(name) for settings in flat)][:8]
    return varied, [{name: settings.get(name) for name in varied} for settings in flat]


def _leave_out_common(blocks: Sequence[Object]) -> list[Object]:
    """Nested data without the keys that are equal in all blocks, because most of a config is equal."""
    first, *others = blocks
    same = set(first)
    for block in others:
        same = {key for key in same if block.get(key) == first[key]}
    differing = [{key: value for key, value in block.items() if key not in same} for block in blocks]
    for key in differing[0]:
        if all(isinstance(block.get(key), dict) for block in differing):
            inner = _leave_out_common([block[key] for block in differing])
            for block, value in zip(differing, inner, strict=True):
                block[key] = value
    return differing


def shorten(value: str, most: int) -> str:
    """Text cut to at most `most` characters."""
    return value if len(value) <= most else f"{value[: most - 1]}…"
