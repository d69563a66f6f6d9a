"""The matrix of a file, expanded into raw runs, and the way back: where in the file a part of a run comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

from pydantic import ValidationError

from ..errors import ConfigError, Problem
from .fields import join_path, split_dotted
from .matrix import MatrixSpec, expand_matrix


@dataclass(frozen=True, slots=True)
class Expansion:
    """All cells of a matrix as raw runs."""

    spec: MatrixSpec
    template: str
    """Where `base_run` stands in the file."""
    names_itself: bool
    """Whether `base_run` has a name of its own; otherwise runs are named after the experiment."""
    cells: list[dict[str, Any]]

    def positions(self) -> Iterator[tuple[int, ...]]:
        """For each cell, the index of its value on each axis."""
        return product(*(range(len(values)) for values in self.spec.axes.values()))

    def in_file(self, problem: Problem, position: tuple[int, ...]) -> Problem:
        """A problem of the cell at `position`, at the place it comes from: a value of an axis, or the template."""
        if problem.path == "name" and (self.spec.name_template or not self.names_itself):
            where = "matrix.name_template" if self.spec.name_template else "matrix.axes"
            return replace(problem, path=where, hint="Choose other names with matrix.name_template.")
        for axis, index in zip(self.spec.axes, position, strict=True):
            start = join_path(split_dotted(axis))
            if problem.path == start or problem.path.startswith((f"{start}.", f"{start}[")):
                return replace(problem, path=f"matrix.axes.{axis}[{index}]{problem.path.removeprefix(start)}")
        return replace(problem, path=f"{self.template}.{problem.path}".rstrip("."))


def expand_file(data: dict[str, Any], problems: list[Problem]) -> Expansion | None:
    """The matrix of a file's data; None when there is none or, with `problems` added, when it cannot be expanded."""
    if not isinstance(data.get("matrix"), dict):
        return None
    beside = data.get("base_run")
    if not isinstance(beside, dict | None):
        return None  # reported with the rest of the file
    beside = cast("dict[str, Any] | None", beside)
    has_name = "name" in data and all(problem.path != "name" for problem in problems)
    try:
        spec = MatrixSpec.model_validate(data["matrix"])
        cells = expand_matrix(spec, beside=beside, experiment=data["name"] if has_name else "run")
    except ValidationError:
        return None  # reported with the rest of the file
    except ConfigError as error:
        problems += error.problems
        return None
    base = beside if beside is not None else spec.base_run or {}
    template = "base_run" if beside is not None else "matrix.base_run"
    return Expansion(spec, template, "name" in base, cells)
