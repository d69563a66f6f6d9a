"""What a built-in transform is made of. Your own transform may use this or just be a class with `__call__(rows)`.

    @register_transform("shout")
    class Shout(RowTransform[NoParams]):
        \"\"\"Puts queries in capitals.\"\"\"

        Config = NoParams

        def row(self, row: Row) -> Row | None:
            return {**row, "query": row["query"].upper()}

Return a new row, or the same one, or None to drop it; never change the row you were given, other pipelines may hold
it too.
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
    """Params of a transform that takes none."""


class BaseTransform[C: BaseModel]:
    """Keeps the validated params as `cfg`; a subclass implements `__call__`."""

    name: ClassVar[str]
    Config: ClassVar[type[BaseModel]]

    def __init__(self, **params: Any) -> None:
        self.cfg: C = self.Config(**params)  # pyright: ignore[reportAttributeAccessIssue]  # Config is C by convention

    def __call__(self, rows: Iterable[Row]) -> Iterable[Row]:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__")


class RowTransform[C: BaseModel](BaseTransform[C]):
    """Looks at one row at a time: implement `row`, or `begin` when a pass over the rows has a memory."""

    def row(self, row: Row) -> Row | None:
        """The new row, or None to drop it."""
        raise NotImplementedError(f"{type(self).__name__} must implement row or begin")

    def begin(self) -> RowFunction:
        """The function for one pass over the rows; called again for every pass."""
        return self.row

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        return self.change_rows(rows, None)

    def change_rows(self, rows: Iterable[Row], bad: BadRows | None) -> Iterator[Row]:
        """The changed rows. A row that is refused is noted in `bad`; without it, it ends the pass."""
        change = self.begin()
        for number, row in enumerate(rows, 1):
            try:
                changed = change(row)
                # By its class, the quickest way to ask: nearly all rows are plain dicts, and each comes by here.
                if changed.__class__ is not dict:
                    if changed is None:
                        continue
                    changed = as_row(changed)
            except Exception as error:
                at = number if bad is None else bad.number or number
                whole = transform_failed(self.name, error, at)
                if bad is None or not isinstance(error, DataError):  # a mistake in the code is none in the rows
                    raise whole from error
                bad.note(f"transform '{self.name}'", error, whole, at)
                continue
            yield changed  # pyright: ignore[reportReturnType]  # the class was compared, which narrows nothing


def is_rowwise(transform: object) -> TypeGuard[RowTransform[Any]]:
    """Whether a transform goes through `RowTransform.__call__`, which reports bad rows itself."""
    owner = next((cls for cls in type(transform).__mro__ if "__call__" in vars(cls)), None)
    return owner is RowTransform


def as_row(value: Any) -> Row:
    """What a transform put out, as a plain dict; typed rows are welcome."""
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, ChatMessagesRow | HarborTask | PromptExample):
        return to_dict(value)
    remedy = (
        "Leave a row out instead of putting None in its place." if value is None else "Put out dicts or typed rows."
    )
    raise DataError(f"it put out {show(value)}, which is not a row. {remedy}")


def transform_failed(name: str, error: Exception, row: int | None = None) -> DataError:
    """The error for an exception inside a transform."""
    place = f"transform '{name}'" + (f", row {row}" if row else "")
    if isinstance(error, DataError):
        return DataError(f"{place}: {error}")
    reason = f"no key {error}" if isinstance(error, KeyError) else str(error) or "no message"
    return DataError(f"{place}: {type(error).__name__}: {reason}")
