"""What differs between the configs of experiments, as dotted paths; what is the same is not mentioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..record.runs import config_runs
from ..record.values import Object, items, part

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
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(f"{prefix}.{key}" if prefix else key, one) for key, one in part({"it": value}, "it").items()]
    elif any(isinstance(one, dict) for one in items(value)):
        inner = [(f"{prefix}[{index}]", one) for index, one in enumerate(items(value))]
    if not inner:
        return {prefix: value} if value not in (None, {}, [], "") else {}
    found: dict[str, Any] = {}
    for path, one in inner:
        found |= flatten_config(one, path)
    return found
