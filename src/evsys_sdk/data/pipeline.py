"""Transforms in order: built from their specs, then applied to a stream of rows.

Rows are streamed unless a transform needs all of them (`shuffle`, or a custom one that returns a list).

    transforms = build_transforms(config.data.transforms, path="run.data.transforms")
    rows = apply_transforms(rows, transforms)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from ..errors import ConfigError, DataError, EvsysError, Problem, show
from ..protocols import Row, Transform
from ..registry import config_model, registry
from .bad_rows import BadRows
from .rows import detect_format, parse_rows


class _Spec(Protocol):
    """The fields of a `TransformSpec`."""

    @property
    def kind(self) -> str: ...
    @property
    def params(self) -> dict[str, Any]: ...


def build_transforms(specs: Sequence[_Spec], *, path: str = "transforms") -> list[Transform]:
    """The transforms of a pipeline; the problems of all specs are reported together, below `path`."""
    built: list[Transform] = []
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        try:
            built.append(_build(spec))
        except ConfigError as error:
            problems += [replace(problem, path=f"{path}[{index}]{problem.path}") for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return built


def apply_transforms(
    rows: Iterable[Row], transforms: Iterable[Transform], *, bad: BadRows | None = None
) -> Iterator[Row]:
    """Rows after all transforms, lazily. An error names the transform and, if known, the row.

    Rows refused by row-wise transforms are recorded in `bad`, the same as for `load_rows`, and reported together after
    the last row.
    """
    from .transform import is_rowwise

    stream: Iterable[Row] = rows
    if bad is None:
        bad = BadRows()
        stream = bad.watch(enumerate(rows, 1))
    for transform in transforms:
        # Row-wise transforms number and check their rows themselves.
        stream = transform.change_rows(stream, bad) if is_rowwise(transform) else _guard(transform, stream)
    yield from _usable(stream, bad) if bad.skip else stream
    bad.finish()


def _usable(rows: Iterable[Row], bad: BadRows) -> Iterator[Row]:
    """The rows without those that are invalid in their apparent format."""
    for number, row in enumerate(rows, 1):
        try:
            if detect_format(row) != "unknown":
                list(parse_rows([row]))
        except DataError as error:
            bad.note("rows", DataError(str(error).removeprefix("data: row 1: ")), error, bad.number or number)
        else:
            yield row


class _Stream:
    """The rows for a transform: read once and counted, or as a list if requested.

    It also stores its own failure, so that the transform is not blamed for earlier errors.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self._list: list[Row] | None = None
        self._begun = False
        self.current: int | None = None
        """Number of the current row; None before the first and after the last."""
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[Row]:
        # Starts at the first row, because list(rows) asks for the length in between.
        if self.error is not None:
            raise self.error
        if self._list is None and self._begun:
            raise DataError("it reads its rows twice. Write 'rows = list(rows)' at its start.")
        self._begun = True
        try:
            for number, row in enumerate(self._rows if self._list is None else self._list, 1):
                self.current = number
                yield row
        except GeneratorExit:  # the reader stopped early, which is not an error
            raise
        except BaseException as error:
            self.error = error
            raise
        self.current = None

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: int) -> Row:
        return self._all()[index]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"rows is a stream and has no '{name}'. Write 'rows = list(rows)' first")

    def _all(self) -> list[Row]:
        if self._list is None:
            rows: list[Row] = []
            rows.extend(iter(self))  # not list(self), which would ask for the length and recurse
            self._list = rows
        return self._list


def _guard(transform: Transform, rows: Iterable[Row]) -> Iterator[Row]:
    from .transform import as_row, transform_failed

    stream = _Stream(rows)
    try:
        for row in _iterable(transform(cast(Iterable[Row], stream))):
            yield row if row.__class__ is dict else as_row(row)
    except Exception as error:
        if error is stream.error:
            raise
        name = getattr(transform, "name", None) or getattr(transform, "__name__", None)
        raise transform_failed(str(name or type(transform).__name__), error, stream.current) from error


def _iterable(result: Any) -> Iterable[Any]:
    if result is None:
        raise DataError("it returned None instead of rows. Return the rows, or use yield.")
    if isinstance(result, dict | str) or not hasattr(result, "__iter__"):
        raise DataError(f"it returned {show(cast(Any, result))} instead of rows. Return a list of rows, or use yield.")
    return cast(Iterable[Any], result)


def _build(spec: _Spec) -> Transform:
    """One transform; problems have paths relative to its spec."""
    from pydantic import ValidationError

    from ..config.checks.problems import problems_in

    try:
        cls = registry("transform").get(spec.kind)
    except EvsysError as error:
        raise ConfigError(Problem(str(error).rstrip("."), path=".kind")) from error
    model = config_model(cls)
    try:
        if model is not None:
            model.model_validate(spec.params)
        transform = cls(**spec.params)
    except ValidationError as error:
        problems = problems_in(error, model=model, data=spec.params) if model else [Problem(str(error))]
        below = [
            replace(problem, path=f".params.{problem.path}" if problem.path else ".params") for problem in problems
        ]
        raise ConfigError(below) from error
    except Exception as error:
        message = f"transform '{spec.kind}' could not be built: {type(error).__name__}: {error}"
        hint = "Give it a Config model, so that its params are checked." if model is None else ""
        raise ConfigError(Problem(message, path=".params", value=spec.params, hint=hint)) from error
    if not callable(transform):
        raise ConfigError(Problem(f"transform '{spec.kind}' has no __call__(rows)", path=".kind", hint="Add one."))
    return cast(Transform, transform)
