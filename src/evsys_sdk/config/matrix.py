"""A matrix: one run template and some axes, expanded into the cartesian product of their values.

Each cell is the template with the values of its axes set at their dotted paths. Cells share everything that no axis
touches, so a large matrix costs little more than its names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from pydantic import Field

from ..errors import MISSING, ConfigError, Problem, closest
from .base import Strict
from .fields import child, dotted, models_at, split_dotted, unknown_part
from .run import RunConfig

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,-]+")


class MatrixSpec(Strict):
    """Many runs from one template."""

    base_run: dict[str, Any] | None = None
    """What all runs share: a run without the values the axes set. May also stand beside `matrix`."""
    axes: dict[str, list[Any]]
    """Dotted path into the run -> the values to try."""
    name_template: str | None = None
    """Run names with `{dotted.path}` placeholders and `{base}`; without it, `{base}__{lastkey}{value}__...`."""
    max_arms: int = Field(default=1000, ge=1)
    """Refuse to expand into more runs than this."""


def expand_matrix(matrix: MatrixSpec, *, beside: dict[str, Any] | None, experiment: str) -> list[dict[str, Any]]:
    """All cells of a matrix as raw runs, or every reason why it cannot be expanded."""
    base, problems = _template(matrix, beside)
    problems += _axis_problems(matrix)
    if problems:
        raise ConfigError(problems)
    base_name = str(base.get("name", experiment))
    cells: dict[str, dict[str, Any]] = {}
    for values in product(*matrix.axes.values()):
        chosen = dict(zip(matrix.axes, values, strict=True))
        cell = base
        for path, value in chosen.items():
            cell = _with_value(cell, path, value)
        name = _cell_name(matrix.name_template, base_name, chosen, cell)
        if name in cells:
            raise ConfigError(_collision(matrix, name))
        cells[name] = {**cell, "name": name}
    return list(cells.values())


def _template(matrix: MatrixSpec, beside: dict[str, Any] | None) -> tuple[dict[str, Any], list[Problem]]:
    if (matrix.base_run is None) == (beside is None):
        both = beside is not None
        message = "base_run stands both inside and beside the matrix" if both else "the matrix has no base_run"
        hint = "Keep one of them." if both else "Add base_run with what all runs share (data, model, algorithm)."
        return {}, [Problem(message, path="matrix.base_run", hint=hint)]
    return matrix.base_run or beside or {}, []


def _axis_problems(matrix: MatrixSpec) -> list[Problem]:
    problems: list[Problem] = []
    if not matrix.axes:
        problems.append(
            Problem("a matrix needs at least one axis", path="matrix.axes", hint="Add one, or use 'run' instead.")
        )
    for axis, values in matrix.axes.items():
        where = f"matrix.axes.{axis}"
        if not values:
            problems.append(
                Problem("this axis has no values", path=where, value=values, hint="Give it at least one value.")
            )
        elif repeated := _repeated(values):
            problems.append(
                Problem("this axis lists a value twice", path=where, value=repeated[0], hint="Remove the repeat.")
            )
        problems += _path_problems(axis, where)
    size = math.prod(len(values) for values in matrix.axes.values())
    if size > matrix.max_arms:
        hint = "Drop values, or raise matrix.max_arms if you mean it."
        problems.append(
            Problem(
                f"the matrix expands into {size} runs; the limit is {matrix.max_arms}", path="matrix.axes", hint=hint
            )
        )
    return problems


def _path_problems(axis: str, where: str) -> list[Problem]:
    path = split_dotted(axis)
    if path == ("name",):
        return [Problem("the name of a run cannot be an axis", path=where, hint="Use matrix.name_template.")]
    index = unknown_part(RunConfig, path)
    if index is None:
        return []
    known = sorted({field for model in models_at(RunConfig, path[:index]) for field in model.model_fields})
    part = str(path[index])
    parent = dotted(path[:index]) or "a run"
    if not known:
        return [Problem(f"'{parent}' has nothing below it called '{part}'", path=where, hint="Check the dotted path.")]
    guess = closest(part, known)
    hint = f"Did you mean '{guess}'?" if guess else f"Known: {', '.join(known)}."
    return [Problem(f"'{part}' is not a field of {parent}", path=where, hint=hint)]


def _repeated(values: list[Any]) -> list[Any]:
    seen: set[str] = set()
    keys = [json.dumps(value, sort_keys=True, default=repr) for value in values]
    return [value for value, key in zip(values, keys, strict=True) if key in seen or seen.add(key)]


def _with_value(cell: dict[str, Any], axis: str, value: Any) -> dict[str, Any]:
    """A copy of `cell` with `value` at the dotted path; only what lies on the path is copied."""
    return _set(cell, split_dotted(axis), value, axis)


def _set(node: Any, path: tuple[str | int, ...], value: Any, axis: str) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(node, list) and isinstance(key, int):
        items: list[Any] = [*node]
        if key >= len(items):
            raise _no_place(axis, f"the list has {len(items)} items")
        items[key] = _set(items[key], rest, value, axis)
        return items
    if not (node is None or isinstance(node, dict)):
        raise _no_place(axis, f"'{key}' would have to be set inside {node!r}")
    entries: dict[str, Any] = {**node} if node else {}
    entries[str(key)] = _set(entries.get(str(key)), rest, value, axis)
    return entries


def _no_place(axis: str, reason: str) -> ConfigError:
    hint = "Check the path, or write that part of base_run out."
    return ConfigError(Problem(f"base_run has no place for this axis: {reason}", path=f"matrix.axes.{axis}", hint=hint))


def _cell_name(template: str | None, base: str, chosen: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    if template is None:
        return "__".join([base, *(f"{split_dotted(axis)[-1]}{slug(value)}" for axis, value in chosen.items())])

    def fill(match: re.Match[str]) -> str:
        key = match[1]
        if key == "base":
            return base
        if key in chosen:
            return slug(chosen[key])
        return slug(_value_at(cell, key))

    return _PLACEHOLDER.sub(fill, template)


def _value_at(cell: Mapping[str, Any], key: str) -> Any:
    node: Any = cell
    for part in split_dotted(key):
        node = child(node, part)
        if node is MISSING:
            message, hint = (
                f"the placeholder '{{{key}}}' names nothing in the run",
                "Use {base} or the dotted path of an axis.",
            )
            raise ConfigError(Problem(message, path="matrix.name_template", hint=hint))
    return node


def slug(value: Any) -> str:
    """A value as part of a run name: floats by `%g` with `p` for the point, the rest made safe for a folder name."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}".replace("+", "").replace(".", "p")
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", "="), default=str)
    return _UNSAFE.sub("-", text).strip("-")[:60] or "empty"


def _collision(matrix: MatrixSpec, name: str) -> Problem:
    where = "matrix.name_template" if matrix.name_template else "matrix.axes"
    hint = (
        "Put every axis into name_template."
        if matrix.name_template
        else "Set matrix.name_template so that names differ."
    )
    return Problem("two runs of the matrix get the same name", path=where, value=name, hint=hint)
