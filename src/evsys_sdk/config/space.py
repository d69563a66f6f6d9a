"""Draw random runs: points of a search space, or a subset of an experiment's runs.

A point is `base_run` with a value for each path of the space, named like a cell of a matrix. The same seed draws the
same runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from .fields import join_path, split_dotted
from .matrix import MatrixSpec, expand_matrix
from .search import Interval, SearchSpec

_TRIES = 200
"""Draws per run after which the space counts as exhausted, because most points repeat."""
_DIGITS = 4
"""Significant digits of a drawn number, to keep names short."""


def draw[T](items: Sequence[T], n: int, seed: int) -> list[T]:
    """A random sample of `n` items in their order; all of them if there are fewer."""
    if n >= len(items):
        return list(items)
    chances = random.Random(seed)
    keys = [chances.random() for _ in items]  # `random()` is stable between Python versions
    chosen = sorted(sorted(range(len(items)), key=keys.__getitem__)[:n])
    return [items[index] for index in chosen]


@dataclass(frozen=True, slots=True)
class SpaceExpansion:
    """The drawn points as raw runs."""

    search: SearchSpec
    names_itself: bool
    """Whether `base_run` has a name; otherwise runs are named after the experiment."""
    points: list[dict[str, Any]]
    cells: list[dict[str, Any]]

    def positions(self) -> Iterator[tuple[int, ...]]:
        """For each run, its index among the points."""
        return ((index,) for index in range(len(self.points)))

    def in_file(self, problem: Problem, position: tuple[int, ...]) -> Problem:
        """A problem of a run at its place in the file: a path of the space, or the template."""
        if problem.path == "name" and not self.names_itself:
            return replace(problem, path="name")
        for path, value in self.points[position[0]].items():
            start = join_path(split_dotted(path))
            if problem.path == start or problem.path.startswith((f"{start}.", f"{start}[")):
                choices = self.search.space[path]
                where = f"[{choices.index(value)}]" if isinstance(choices, list) else ""
                return replace(problem, path=f"search.space.{path}{where}{problem.path.removeprefix(start)}")
        return replace(problem, path=f"base_run.{problem.path}".rstrip("."))


def sample_space(search: SearchSpec, base_run: dict[str, Any], *, experiment: str) -> SpaceExpansion:
    """`search.n` distinct runs; ConfigError with all problems if they cannot be drawn."""
    chances = random.Random(search.seed)
    n_points = search.n or 1
    points: dict[str, dict[str, Any]] = {}
    cells: list[dict[str, Any]] = []
    for _ in range(n_points * _TRIES):
        point = {path: _value(values, chances.random()) for path, values in search.space.items()}
        if (key := repr(point)) not in points:  # `repr`, because 1 == True, and lists have no hash
            points[key] = point
            cells.append(_cell(point, base_run, experiment))
        if len(points) == n_points:
            break
    else:
        hint = f"Set search.n to {len(points)}, or widen the space."
        message = f"the space has no more than {len(points)} different points, and {n_points} are to be drawn"
        raise ConfigError(Problem(message, path="search.n", value=n_points, hint=hint))
    return SpaceExpansion(search, "name" in base_run, list(points.values()), _rename_twins(cells))


def expand_space(data: dict[str, Any], problems: list[Problem]) -> SpaceExpansion | None:
    """The points of a file's data; None without a space, or if none can be drawn, with `problems` extended."""
    search, base = data.get("search"), data.get("base_run")
    if not isinstance(search, dict) or not cast("dict[str, Any]", search).get("space") or not isinstance(base, dict):
        return None
    if any(field in data for field in ("run", "runs", "matrix")):
        return None  # reported with the rest of the file
    # An invalid name was reported; as part of every run's name it would be reported again for each.
    has_name = "name" in data and all(problem.path != "name" for problem in problems)
    try:
        spec = SearchSpec.model_validate(search)
        name = data["name"] if has_name else "run"
        return sample_space(spec, cast("dict[str, Any]", base), experiment=name)
    except ValidationError:
        return None  # reported with the rest of the file
    except ConfigError as error:
        problems += error.problems
        return None


def _value(values: Interval | list[Any], chance: float) -> Any:
    if isinstance(values, list):
        return values[int(chance * len(values))]
    whole = isinstance(values.low, int) and isinstance(values.high, int)
    low, high = float(values.low), float(values.high)
    if whole:  # every integer has the same probability, also the first and the last
        low, high = low - 0.5, high + 0.5
    if values.scale == "log":
        value = math.exp(math.log(low) + chance * (math.log(high) - math.log(low)))
    else:
        value = low + chance * (high - low)
    value = float(round(value)) if whole else float(f"{value:.{_DIGITS}g}")
    value = min(max(value, values.low), values.high)  # rounding may leave the interval
    return int(value) if whole else value


def _cell(point: Mapping[str, Any], base_run: dict[str, Any], experiment: str) -> dict[str, Any]:
    # A point is a matrix with one value per axis, so that names and errors are the same.
    matrix = MatrixSpec(base_run=base_run, axes={path: [value] for path, value in point.items()})
    try:
        [cell] = expand_matrix(matrix, shared_base=None, experiment=experiment)
    except ConfigError as error:
        raise ConfigError([_of_space(problem) for problem in error.problems]) from None
    return cell


def _of_space(problem: Problem) -> Problem:
    """A problem of the matrix in the terms of the search space."""
    path = problem.path.replace("matrix.axes", "search.space", 1).replace("matrix.base_run", "base_run", 1)
    message = problem.message.replace("this axis", "this path").replace("the axis", "the path")
    message = message.replace("cannot be an axis", "cannot be drawn")
    hint = "" if problem.hint == "Use matrix.name_template." else problem.hint
    return replace(problem, path=path, message=message, hint=hint or "Remove it.")


def _rename_twins(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the cells with equal names."""
    counts: dict[str, int] = {}
    named: list[dict[str, Any]] = []
    for cell in cells:
        counts[cell["name"]] = counts.get(cell["name"], 0) + 1
        count = counts[cell["name"]]
        named.append(cell if count == 1 else {**cell, "name": f"{cell['name']}-{count}"})
    return named
