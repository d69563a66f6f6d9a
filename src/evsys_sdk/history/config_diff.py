"""What differs between the configs of experiments, as dotted paths; what is the same is not mentioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ..record.runs import config_runs
from ..record.values import Object

if TYPE_CHECKING:
    from .detail import Detail

_NOT_TOLD = ("name", "run", "runs", "matrix", "base_run", "parent_experiment_id", "output_dir")
"""Fields that differ between experiments as a matter of course, or are compared run by run."""
ABSENT = "(not set)"

type Difference = tuple[str, list[Any]]
"""Dotted path, and the value of each experiment."""


def config_differences(details: Sequence[Detail]) -> list[Difference]:
    """Every path whose value is not the same in all of them."""
    flat = [flatten_config({**_top(detail.config), **_runs(detail, details)}) for detail in details]
    paths = dict.fromkeys(path for one in flat for path in one)
    return [
        (path, [one.get(path, ABSENT) for one in flat])
        for path in paths
        if any(one.get(path, ABSENT) != flat[0].get(path, ABSENT) for one in flat)
    ]


def _top(config: Object) -> Object:
    return {name: value for name, value in config.items() if name not in _NOT_TOLD}


def _runs(detail: Detail, details: Sequence[Detail]) -> Object:
    """Runs by name where the experiments share names; else the best run of each."""
    named = [{str(run.get("name")): run for run in config_runs(one.config)} for one in details]
    shared = set(named[0]).intersection(*named[1:])
    own = {str(run.get("name")): run for run in config_runs(detail.config)}
    if shared:
        return {"runs": {name: _without_name(run) for name, run in own.items()}}
    chosen = [own[name] for name in (detail.chosen_run, *own) if name in own]
    return {"run": _without_name(chosen[0])} if chosen else {}


def _without_name(run: Object) -> Object:
    return {key: value for key, value in run.items() if key != "name"}


def flatten_config(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted paths; lists of plain values stay as they are."""
    found: dict[str, Any] = {}
    _flatten(value, prefix, found)
    return found


def _flatten(value: Any, path: str, found: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in cast(Object, value).items():
            _flatten(inner, f"{path}.{key}" if path else key, found)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in cast(list[Any], value)):
        for index, inner in enumerate(cast(list[Any], value)):
            _flatten(inner, f"{path}[{index}]", found)
    elif value is not None and value != "" and value != []:
        found[path] = value
