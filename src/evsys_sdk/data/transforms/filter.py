"""`filter`: keep rows by conditions on their fields. Conditions are data; nothing in them is evaluated.

- kind: filter
  params: {conditions: [{field: score, operator: ge, value: 0.5}, {field: lang, operator: in, value: [en, de]}]}
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...errors import MISSING, DataError, show
from ...protocols import Row
from ..fields import no_such_field, reader
from ..transform import RowFunction, RowTransform, TransformConfig

type Operator = Literal[
    "eq", "ne", "lt", "le", "gt", "ge", "in", "not_in", "contains", "not_contains", "starts_with", "ends_with",
    "matches", "exists", "missing", "min_length", "max_length",
]  # fmt: skip

_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda actual, value: _same(actual, value),
    "ne": lambda actual, value: not _same(actual, value),
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "in": lambda actual, value: any(_same(actual, item) for item in value),
    "not_in": lambda actual, value: not any(_same(actual, item) for item in value),
    "contains": lambda actual, value: value in actual,
    "not_contains": lambda actual, value: value not in actual,
    "starts_with": lambda actual, value: actual.startswith(value),
    "ends_with": lambda actual, value: actual.endswith(value),
    "matches": lambda actual, value: value.search(actual) is not None,
    "min_length": lambda actual, value: len(actual) >= value,
    "max_length": lambda actual, value: len(actual) <= value,
}
_NEEDS: dict[str, tuple[type, ...]] = {
    "in": (list,),
    "not_in": (list,),
    "starts_with": (str,),
    "ends_with": (str,),
    "matches": (str,),
    "min_length": (int,),
    "max_length": (int,),
    "lt": (int, float, str),
    "le": (int, float, str),
    "gt": (int, float, str),
    "ge": (int, float, str),
}
"""Operator -> allowed types of its value."""


class Condition(TransformConfig):
    """One test of one field."""

    field: str = Field(min_length=1)
    """Field of the row or its metadata; dotted paths access nested fields and list items, e.g. messages.-1.content."""
    operator: Operator = "eq"
    """Comparison of the field with the value."""
    value: Any = None
    """A list for in and not_in, a regular expression for matches, nothing for exists and missing."""

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        needs = _NEEDS.get(self.operator)
        if self.operator in ("exists", "missing"):
            if self.value is not None:
                raise ValueError(f"the operator '{self.operator}' takes no value. Remove it.")
        elif needs and (
            not isinstance(self.value, needs) or isinstance(self.value, bool)
        ):  # booleans are ints in Python
            kinds = {list: "a list", str: "text", int: "a number", float: "a number"}
            expected = " or ".join(dict.fromkeys(kinds[kind] for kind in needs))
            raise ValueError(
                f"the operator '{self.operator}' needs {expected}, not {show(self.value)}. Change the value."
            )
        if self.operator == "matches":
            try:
                re.compile(str(self.value))
            except re.error as error:
                raise ValueError(f"{show(self.value)} is not a regular expression: {error}. Correct it.") from error
        return self


class FilterConfig(TransformConfig):
    """Conditions on rows."""

    conditions: list[Condition] = Field(min_length=1)
    """Conditions of a row, evaluated in this order with short-circuiting."""
    match: Literal["all", "any"] = "all"
    """Whether all conditions must hold, or any."""
    missing: Literal["error", "false"] = "error"
    """Result of a condition on a missing field; put an `exists` condition first to distinguish."""


class FilterRows(RowTransform[FilterConfig]):
    """Keeps the rows that meet conditions on their fields."""

    name: ClassVar[str] = "filter"
    Config = FilterConfig

    def begin(self) -> RowFunction:
        """All conditions as one function."""
        tests = [_test(condition, strict=self.cfg.missing == "error") for condition in self.cfg.conditions]
        combine = all if self.cfg.match == "all" else any

        def keep(row: Row) -> Row | None:
            return row if combine(test(row) for test in tests) else None

        return keep


def _test(condition: Condition, *, strict: bool) -> Callable[[Row], bool]:
    read, name = reader(condition.field), condition.operator
    if name in ("exists", "missing"):
        return lambda row: (read(row) is not MISSING) is (name == "exists")
    compare = _TESTS[name]
    value = re.compile(condition.value) if name == "matches" else condition.value

    def test(row: Row) -> bool:
        actual = read(row)
        if actual is MISSING:
            if strict:
                raise no_such_field(condition.field, row)
            return False
        try:
            return compare(actual, value)
        except (TypeError, AttributeError) as error:
            does = f"'{name}' {show(condition.value)}"
            raise DataError(
                f"the field '{condition.field}' is {show(actual)}, which cannot be tested with {does}."
            ) from error

    return test


def _same(first: Any, second: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    return first == second and isinstance(first, bool) is isinstance(second, bool)
