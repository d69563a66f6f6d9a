"""Base classes of transforms. A custom transform may use them or be a class with `__call__(rows)`.

    @register_transform("shout")
    class Shout(RowTransform[NoParams]):
        \"\"\"Puts queries in capitals.\"\"\"

        Config = NoParams

        def row(self, row: Row) -> Row | None:
            return {**row, "query": row["query"].upper()}

Return a new row, the same one, or None to drop it; never modify the given row, which other pipelines may share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeGuard

from pydantic import BaseModel

from ..config.base import Strict
from ..errors import DataError, show
from ..protocols import Row
from .bad_rows import BadRows
from .rows import to_dict
from .types import ChatMessagesRow, HarborTask, PromptExample

type RowFunction = Callable[[Row], Row | None]


class TransformConfig(Strict):
    """Base of the params of built-in transforms."""


class NoParams(TransformConfig):
    """Params of a transform without params."""


class BaseTransform[C: BaseModel]:
    """Keeps the validated params as `cfg`; a subclass implements `__call__`."""

    name: ClassVar[str]
    Config: ClassVar[type[BaseModel]]

    def __init__(self, **params: Any) -> None:
        self.cfg: C = self.Config(**params)  # pyright: ignore[reportAttributeAccessIssue]  # Config is C by convention

    def __call__(self, rows: Iterable[Row]) -> Iterable[Row]:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__")


class RowTransform[C: BaseModel](BaseTransform[C]):
    """Transforms rows one at a time: implement `row`, or `begin` if a pass over the rows has state."""

    def row(self, row: Row) -> Row | None:
        """The new row, or None to drop it."""
        raise NotImplementedError(f"{type(self).__name__} must implement row or begin")

    def begin(self) -> RowFunction:
        """The row function for one pass; called again for every pass."""
        return self.row

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        return self.change_rows(rows, None)

    def change_rows(self, rows: Iterable[Row], bad: BadRows | None) -> Iterator[Row]:
        """The changed rows. A refused row is recorded in `bad`; without `bad`, the pass stops with the error."""
        change = self.begin()
        for number, row in enumerate(rows, 1):
            try:
                changed = change(row)
                # A class comparison is the fastest check; nearly all rows are plain dicts.
                if changed.__class__ is not dict:
                    if changed is None:
                        continue
                    changed = as_row(changed)
            except Exception as error:
                at = number if bad is None else bad.number or number
                full = transform_failed(self.name, error, at)
                if bad is None or not isinstance(error, DataError):  # an error of the code, not of the row
                    raise full from error
                bad.note(f"transform '{self.name}'", error, full, at)
                continue
            yield changed  # pyright: ignore[reportReturnType]  # the class was compared, which narrows nothing


def is_rowwise(transform: object) -> TypeGuard[RowTransform[Any]]:
    """Whether a transform uses `RowTransform.__call__`, which reports bad rows itself."""
    owner = next((cls for cls in type(transform).__mro__ if "__call__" in vars(cls)), None)
    return owner is RowTransform


def as_row(value: Any) -> Row:
    """A transform's output as a plain dict; accepts typed rows."""
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, ChatMessagesRow | HarborTask | PromptExample):
        return to_dict(value)
    remedy = (
        "Leave a row out instead of putting None in its place." if value is None else "Put out dicts or typed rows."
    )
    raise DataError(f"it put out {show(value)}, which is not a row. {remedy}")


def transform_failed(name: str, error: Exception, row: int | None = None) -> DataError:
    """The error for an exception in a transform."""
    place = f"transform '{name}'" + (f", row {row}" if row else "")
    if isinstance(error, DataError):
        return DataError(f"{place}: {error}")
    reason = f"no key {error}" if isinstance(error, KeyError) else str(error) or "no message"
    return DataError(f"{place}: {type(error).__name__}: {reason}")
