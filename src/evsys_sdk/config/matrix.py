"""A matrix: a run template and axes, expanded into the Cartesian product of their values.

Each cell is the template with the values of the axes at their dotted paths. Cells share all data that no axis changes,
so a large matrix needs little memory.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any, NamedTuple, cast

from pydantic import Field, ValidationError

from ..errors import MISSING, ConfigError, Problem, closest, show, suggest
from .base import Strict
from .checks.remedies import how_to_write
from .fields import Path, child, find_unknown_part, join_path, models_at, split_dotted
from .run import RunConfig

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,-]+")


class MatrixSpec(Strict):
    """Runs from a template and axes."""

    base_run: dict[str, Any] | None = None
    """Settings that all runs share, without the values of the axes. Also allowed next to `matrix`."""
    axes: dict[str, list[Any]]
    """Dotted path in a run -> its values."""
    name_template: str | None = None
    """Run names with `{dotted.path}` placeholders and `{base}`; by default `{base}__{lastkey}{value}__...`."""
    max_arms: int = Field(default=1000, ge=1)
    """Limit of the number of runs."""


def expand_matrix(matrix: MatrixSpec, *, shared_base: dict[str, Any] | None, experiment: str) -> list[dict[str, Any]]:
    """The cells of a matrix as raw runs; ConfigError with all problems if it cannot be expanded."""
    base, problems = _template(matrix, shared_base)
    problems += _axis_problems(matrix)
    if problems:
        raise ConfigError(problems)
    base_name = base.get("name", experiment)
    labels = {axis: _labels(values) for axis, values in matrix.axes.items()}
    cells: dict[str, dict[str, Any]] = {}
    for position in product(*(range(len(values)) for values in matrix.axes.values())):
        chosen = dict(zip(matrix.axes, position, strict=True))
        cell = base
        for axis, index in chosen.items():
            cell = set_value(cell, split_dotted(axis), matrix.axes[axis][index], axis)
        shown = {axis: labels[axis][index] for axis, index in chosen.items()}
        name = _cell_name(matrix.name_template, base_name, shown, cell)
        if name in cells:
            message, hint = "two runs of the matrix get the same name", "Put every axis into name_template."
            raise ConfigError(Problem(message, path="matrix.name_template", value=name, hint=hint))
        cells[name] = {**cell, "name": name}
    return list(cells.values())


def _template(matrix: MatrixSpec, shared_base: dict[str, Any] | None) -> tuple[dict[str, Any], list[Problem]]:
    if matrix.base_run is None and shared_base is None:
        hint = "Add base_run with what all runs share (data, model, algorithm)."
        return {}, [Problem("the matrix has no base_run", path="matrix", hint=hint)]
    if matrix.base_run is not None and shared_base is not None:
        message = "base_run is given both inside and next to the matrix"
        return {}, [Problem(message, path="matrix.base_run", hint="Keep one of them.")]
    where, base = ("matrix.base_run", matrix.base_run) if shared_base is None else ("base_run", shared_base)
    name = (base or {}).get("name", "")
    if not isinstance(name, str):
        hint = how_to_write("text", name, [])
        return {}, [Problem("should be text", path=f"{where}.name", value=name, hint=hint)]
    return base or {}, []


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
        elif repeated := _find_repeated(values):
            problems.append(
                Problem("this axis lists a value twice", path=where, value=repeated[0], hint="Remove the repeat.")
            )
        problems += _path_problems(axis, where)
    problems += _overlaps(matrix.axes)
    # Checked before the expansion, because ten axes of ten values would not fit into memory.
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
    index = find_unknown_part(RunConfig, path)
    if index is None:
        return []
    fields = sorted({field for model in models_at(RunConfig, path[:index]) for field in model.model_fields})
    part, parent = str(path[index]), join_path(path[:index]) or "a run"
    if not fields:
        return [Problem(f"'{parent}' has nothing below it called '{part}'", path=where, hint="Check the dotted path.")]
    hint = suggest(part, fields) or f"Known: {', '.join(fields)}."
    if part in fields:
        hint = f"'{parent}' is a list: say which item, as in '{parent}[0].{part}'."
    # The path was written from the top of the file, as in error messages.
    if path[0] in ("run", "base_run") and find_unknown_part(RunConfig, path[1:]) is None:
        hint = f"Write '{join_path(path[1:])}': the path starts inside the run."
    return [Problem(f"'{part}' is not a field of {parent}", path=where, hint=hint)]


def _overlaps(axes: Collection[str]) -> list[Problem]:
    """The problems of axes that overwrite each other's values."""
    problems: list[Problem] = []
    paths = {axis: split_dotted(axis) for axis in axes}
    for (axis, outer), (other, inner) in permutations(paths.items(), 2):
        # Both orders of each pair occur; report two axes with the same path once.
        same_twice = outer == inner and list(axes).index(axis) > list(axes).index(other)
        if inner[: len(outer)] == outer and not same_twice:
            message = f"this axis sets a part of what the axis '{axis}' sets"
            problems.append(Problem(message, path=f"matrix.axes.{other}", hint="Keep one of the two."))
    return problems


def _find_repeated(values: list[Any]) -> list[Any]:
    seen: set[str] = set()
    # As JSON text, because 1, 1.0 and True are equal in Python, and lists have no hash.
    keys = [json.dumps(value, sort_keys=True, default=repr) for value in values]
    return [value for value, key in zip(values, keys, strict=True) if key in seen or seen.add(key)]


def set_value(node: Any, path: Path, value: Any, axis: str = "") -> Any:
    """A copy of `node` with `value` at `path`; only the containers on the path are copied."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(node, list) and isinstance(key, int):
        items: list[Any] = [*node]
        if key >= len(items):
            raise _no_place(axis, f"the list there has {len(items)} items, and the first is number 0")
        items[key] = set_value(items[key], rest, value, axis)
        return items
    if node is None and isinstance(key, int):
        raise _no_place(axis, f"there is no list that could have an item {key}")
    if not isinstance(node, dict | None):
        raise _no_place(axis, f"'{key}' would have to be set inside {show(cast('Any', node))}")
    entries: dict[str, Any] = {**node} if node else {}
    entries[str(key)] = set_value(entries.get(str(key)), rest, value, axis)
    return entries


def _no_place(axis: str, reason: str) -> ConfigError:
    hint = "Check the path, or write that part of base_run out."
    return ConfigError(Problem(f"base_run has no place for this axis: {reason}", path=f"matrix.axes.{axis}", hint=hint))


def _cell_name(template: str | None, base: str, labels: Mapping[str, str], cell: Mapping[str, Any]) -> str:
    if template is None:
        return "__".join([base, *(f"{split_dotted(axis)[-1]}{label}" for axis, label in labels.items())])
    labels_by_axis = {"base": base, **labels}
    return _PLACEHOLDER.sub(
        lambda match: labels_by_axis.get(match[1]) or slug(_value_at(cell, match[1], labels_by_axis)), template
    )


def _value_at(cell: Mapping[str, Any], key: str, labels: Mapping[str, str]) -> Any:
    node: Any = cell
    for part in split_dotted(key):
        node = child(node, part)
    if node is not MISSING:
        return node
    guess = next((name for name in labels if split_dotted(name)[-1] == key), None) or closest(key, labels)
    hint = f"Did you mean '{{{guess}}}'?" if guess else "Use {base} or the dotted path of an axis."
    message = f"the placeholder '{{{key}}}' names nothing in the run"
    raise ConfigError(Problem(message, path="matrix.name_template", hint=hint))


def _labels(values: Sequence[Any]) -> list[str]:
    """The slugs of an axis; equal slugs get a number."""
    slugs = [slug(value) for value in values]
    counts = Counter(slugs)
    return [text if counts[text] == 1 else f"{text}-{index}" for index, text in enumerate(slugs, start=1)]


def slug(value: Any) -> str:
    """A value as part of a run name: floats by `%g` with `p` for the point, others safe for a folder name."""
    # As in YAML: `true`, `null`.
    if isinstance(value, int | None):
        return json.dumps(value)
    if isinstance(value, float):
        text = f"{value:g}"
        exact = text if float(text) == value else repr(value)  # %g keeps six digits
        return exact.replace("+", "").replace(".", "p")
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", "="), default=str)
    return _UNSAFE.sub("-", text).strip("-")[:60] or "empty"


class Expansion(NamedTuple):
    """The cells of a matrix as raw runs, with the places in the file that they come from."""

    spec: MatrixSpec
    template: str
    """Path of `base_run` in the file."""
    names_itself: bool
    """Whether `base_run` has a name; otherwise runs are named after the experiment."""
    cells: list[dict[str, Any]]

    def positions(self) -> Iterator[tuple[int, ...]]:
        """For each cell, the index of its value on each axis."""
        return product(*(range(len(values)) for values in self.spec.axes.values()))

    def in_file(self, problem: Problem, position: tuple[int, ...]) -> Problem:
        """A problem of the cell at `position`, at its place in the file: a value of an axis, or the template."""
        if problem.path == "name" and (self.spec.name_template or not self.names_itself):
            where = "matrix.name_template" if self.spec.name_template else "matrix.axes"
            return replace(problem, path=where, hint="Choose other names with matrix.name_template.")
        for axis, index in zip(self.spec.axes, position, strict=True):
            start = join_path(split_dotted(axis))
            if problem.path == start or problem.path.startswith((f"{start}.", f"{start}[")):
                return replace(problem, path=f"matrix.axes.{axis}[{index}]{problem.path.removeprefix(start)}")
        return replace(problem, path=f"{self.template}.{problem.path}".rstrip("."))


def expand_file(data: dict[str, Any], problems: list[Problem]) -> Expansion | None:
    """The matrix of a file's data; None without one, or if it cannot be expanded, with `problems` extended."""
    if not isinstance(data.get("matrix"), dict):
        return None
    shared_base = data.get("base_run")
    if not isinstance(shared_base, dict | None):
        return None  # reported with the rest of the file
    shared_base = cast("dict[str, Any] | None", shared_base)
    # An invalid name was reported; as part of every run's name it would be reported again for each.
    has_name = "name" in data and all(problem.path != "name" for problem in problems)
    try:
        spec = MatrixSpec.model_validate(data["matrix"])
        cells = expand_matrix(spec, shared_base=shared_base, experiment=data["name"] if has_name else "run")
    except ValidationError:
        return None  # reported with the rest of the file
    except ConfigError as error:
        problems += error.problems
        return None
    base = shared_base if shared_base is not None else spec.base_run or {}
    template = "base_run" if shared_base is not None else "matrix.base_run"
    return Expansion(spec, template, "name" in base, cells)
